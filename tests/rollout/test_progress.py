"""The progress line: counts, rates, what is left."""

from typing import Any

from dragoman.rollout.progress import Progress, kind_of_reason
from dragoman.rollout.samples import Outcome


def _outcome(**more: Any) -> Outcome:
    end, reason = more.pop("end", "completed"), more.pop("reason", None)
    return Outcome("t", "pi", 0, None, "e", end, reason, **more)


def test_the_line() -> None:
    state = Progress(10, started=100.0, running=3)
    state.add(_outcome(reward=1.0, completion_tokens=500), before=True)
    state.add(_outcome(reward=1.0, completion_tokens=300, calls=2))
    state.add(_outcome(reward=0.5, completion_tokens=100, calls=1))
    state.add(_outcome(end="timed_out", reason="pi was stopped after 60 s", reward=0.0))
    state.add(_outcome(end="failed", reason="pi exited with 1"))
    state.add(_outcome(end="abandoned", again=True, reason="the engine is away"))

    assert state.line(140.0) == (
        "5/10 done · 3 running · 1 failed · 1 timed_out · passed 50%, mean reward 0.625 · 10 tokens/s · 50 s left"
    )
    assert dict(state.reasons) == {"pi was stopped after N s": 1, "pi exited with N": 1}
    assert (state.again, state.calls) == (1, 3)


def test_without_an_end_there_is_nothing_left_to_tell() -> None:
    state = Progress(None, started=0.0)
    assert state.line(10.0) == "0 done · 0 running · 0 tokens/s"
    state.add(_outcome())
    assert state.line(10.0) == "1 done · 0 running · 0 tokens/s"


def test_long_times_are_rounded() -> None:
    state = Progress(101, started=0.0)
    state.add(_outcome())
    assert state.line(60.0).endswith("1.7 h left")
    assert state.line(6.0).endswith("10 min left")


def test_reasons_that_differ_in_numbers_are_one_kind() -> None:
    assert kind_of_reason("pi exited with 7\nmore") == kind_of_reason("pi exited with 12") == "pi exited with N"
    assert kind_of_reason(None) == "no reason"
