"""Many samples at once: each once, disturbed ones again, and nothing runs when it is over."""

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dragoman.rollout.health import Health
from dragoman.rollout.process import Stopped
from dragoman.rollout.runner import MOST_TRIES, all_samples, run_tasks
from dragoman.rollout.samples import Outcome, Sample, Setting
from dragoman.rollout.tasks import Task

SETTING = Setting("run", "http://127.0.0.1:1", "key", 2)
TASKS = [Task(f"t{number}", "do it") for number in range(3)]


class Well(Health):
    """Nothing is ever wrong."""

    def __init__(self) -> None:
        pass

    @contextmanager
    def watching(self) -> Iterator[None]:
        yield


def _outcome(sample: Sample, **more: Any) -> Outcome:
    return Outcome(*sample.key, "e", more.pop("end", "completed"), None, **more)


def _run(supply: Any, work: Callable[..., Outcome], **more: Any) -> list[Outcome]:
    outcomes: list[Outcome] = []
    more = {"concurrency": 2, "stop": threading.Event(), "on_outcome": outcomes.append, **more}
    run_tasks(supply, SETTING, Well(), work=work, **more)
    return outcomes


def test_samples_of_one_group_stand_together() -> None:
    samples = all_samples(TASKS, ["pi", "claude"], 2, round=7)
    assert [sample.key for sample in samples[:5]] == [
        ("t0", "pi", 0, 7),
        ("t0", "pi", 1, 7),
        ("t0", "claude", 0, 7),
        ("t0", "claude", 1, 7),
        ("t1", "pi", 0, 7),
    ]
    assert len(samples) == 12


def test_each_is_run_once_and_never_too_many_at_a_time() -> None:
    lock, running, most = threading.Lock(), [0], [0]
    met = threading.Barrier(2, timeout=30)

    def work(sample: Sample, *_: Any) -> Outcome:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        met.wait()  # two are here at the same time
        with lock:
            running[0] -= 1
        return _outcome(sample)

    samples = all_samples(TASKS, ["pi"], 2)
    outcomes = _run(samples, work)
    assert sorted(one.key for one in outcomes) == sorted(sample.key for sample in samples)
    assert most == [2]


def test_a_disturbed_sample_is_run_again_up_to_a_limit() -> None:
    tries: list[int] = []

    def work(sample: Sample, *_: Any) -> Outcome:
        tries.append(sample.number)
        if sample.number == 0 and tries.count(0) < 3:
            return _outcome(sample, end="abandoned", again=True)
        return _outcome(sample, end="abandoned" if sample.number else "completed", again=bool(sample.number))

    outcomes = _run(all_samples(TASKS[:1], ["pi"], 2), work, concurrency=1)
    assert (tries.count(0), tries.count(1)) == (3, MOST_TRIES)
    final = {one.number: one for one in outcomes if not one.again}
    assert (final[0].end, final[1].end) == ("completed", "abandoned")


def test_a_supply_may_have_nothing_now_and_may_go_on_for_ever() -> None:
    stop = threading.Event()
    done: list[Outcome] = []

    def supply() -> Iterator[Sample | None]:
        for number in itertools.count():
            yield None if number % 2 else Sample(TASKS[0], "pi", number)

    def on_outcome(outcome: Outcome) -> None:
        done.append(outcome)
        if len(done) == 3:
            stop.set()

    _run(supply(), lambda sample, *_: _outcome(sample), stop=stop, on_outcome=on_outcome)
    assert [one.number for one in done[:3]] == [0, 2, 4]


def test_a_stop_waits_for_what_runs_and_tells_nothing_of_it() -> None:
    stop, begun = threading.Event(), threading.Event()
    ended: list[str] = []

    def work(sample: Sample, setting: Setting, stopped: Callable[[], bool], on_opened: Any) -> Outcome:
        begun.set()
        stop.wait(30)
        assert stopped()
        ended.append(sample.task.id)
        raise Stopped

    def stop_it() -> None:
        begun.wait(30)
        stop.set()

    threading.Thread(target=stop_it, daemon=True).start()
    assert _run(all_samples(TASKS, ["pi"], 1), work, stop=stop) == []
    assert len(ended) in (1, 2)


def test_an_error_in_a_callback_ends_the_run_and_what_runs() -> None:
    stop = threading.Event()
    left: list[bool] = []

    def work(sample: Sample, setting: Setting, stopped: Callable[[], bool], on_opened: Any) -> Outcome:
        if sample.task.id == "t0":
            return _outcome(sample)
        stop.wait(30)
        left.append(stopped())
        raise Stopped

    def broken(outcome: Outcome) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _run(all_samples(TASKS, ["pi"], 1), work, stop=stop, on_outcome=broken)
    assert left in ([True], [])
    assert stop.is_set()


def test_opened_episodes_are_told(tmp_path: Path) -> None:
    seen: list[tuple[str, str]] = []

    def work(sample: Sample, setting: Setting, stopped: Any, on_opened: Callable[[Sample, str], None]) -> Outcome:
        on_opened(sample, f"episode-{sample.number}")
        return _outcome(sample)

    _run(all_samples(TASKS[:1], ["pi"], 2), work, on_opened=lambda sample, one: seen.append((sample.task.id, one)))
    assert sorted(seen) == [("t0", "episode-0"), ("t0", "episode-1")]
