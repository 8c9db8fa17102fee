"""Which episodes an evaluation counts, what it makes of them, and how it holds two versions against each other."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.monitor.episode_facts import EpisodeFacts
from dragoman.monitor.estimates import mcnemar
from dragoman.monitor.evals import Dimension, EvalRow, compare, is_infrastructure, is_passed, is_scored, table
from dragoman.monitor.tool_errors import ToolErrors

NUMBERS = iter(range(1 << 30))


def episode(task: str | None = "t", reward: float | None = None, **more: Any) -> EpisodeFacts:
    known: dict[str, Any] = {"run": "r", "split": "test", "harness": "pi", "version": "base", "end": "completed"}
    return EpisodeFacts(id=f"e{next(NUMBERS)}", task=task, reward=reward, **{**known, "seconds": 10.0, **more})


def rows(
    *episodes: EpisodeFacts, by: tuple[Dimension, ...] = (), ks: tuple[int, ...] = (1,), pass_at: float = 1.0
) -> tuple[EvalRow, ...]:
    return table(episodes, by=by, ks=ks, pass_at=pass_at, seed=0)


def values(row: EvalRow) -> list[float | None]:
    return [None if rate.estimate is None else rate.estimate.value for rate in row.passes]


@pytest.mark.parametrize(
    ("end", "reward", "infrastructure", "scored", "passed"),
    [
        ("completed", 1.0, False, True, True),
        ("completed", 0.5, False, True, False),
        ("completed", None, False, False, False),
        ("failed", 1.0, False, True, True),  # the harness ended with an error, its work was judged all the same
        ("failed", 0.0, False, True, False),
        ("failed", None, True, False, False),
        ("timed_out", None, False, True, False),
        ("timed_out", 1.0, False, True, False),
        ("abandoned", 1.0, True, False, False),
        ("abandoned", None, True, False, False),
        (None, 1.0, False, False, False),
    ],
)
def test_what_counts(end: str | None, reward: float | None, infrastructure: bool, scored: bool, passed: bool) -> None:
    one = episode(end=end, reward=reward)

    assert (is_infrastructure(one), is_scored(one), is_passed(one, 1.0)) == (infrastructure, scored, passed)


def test_one_row() -> None:
    (row,) = rows(
        episode("a", 1.0, turns=3, prompt_tokens=30, completion_tokens=4, histories=2, continued=2),
        episode("a", 0.0, turns=1, prompt_tokens=10, completion_tokens=2, tools=ToolErrors(4, 1, 1, 0, 0)),
        episode("b", 0.5, histories=2, continued=1, seconds=40.0),
        episode("b", end="timed_out"),
        episode("c", end="abandoned", turns=900, tools=ToolErrors(9, 9)),
        episode("c", end=None, turns=900),
        episode("d"),
        ks=(2, 1),
    )

    assert (row.episodes, row.tasks, row.scored, row.passed, row.timed_out) == (5, 3, 4, 1, 1)
    assert (row.infrastructure, row.open) == (1, 1)
    assert [(rate.k, rate.tasks) for rate in row.passes] == [(1, 2), (2, 2)]
    assert values(row) == [0.25, 0.5]
    assert row.reward is not None
    assert row.reward.value == 0.5  # a: 0.5, b: 0.5; nothing is made up for the one that was stopped
    assert (row.turns, row.prompt_tokens, row.completion_tokens) == (0.8, 8.0, 1.2)
    assert (row.tool_calls, row.tool_errors, row.errors) == (0.8, 0.4, ToolErrors(4, 1, 1, 0, 0))
    assert row.exact == 0.75
    assert row.seconds == 16.0


def test_pass_at() -> None:
    some = (episode("a", 0.5), episode("b", 0.8), episode("c", 1.0), episode("d", -1.0))

    assert [values(row) for at in (1.0, 0.8, 0.1) for row in rows(*some, pass_at=at)] == [[0.25], [0.5], [0.75]]


def test_episodes_without_a_task_are_tasks_of_their_own() -> None:
    (row,) = rows(episode(None, 1.0), episode(None, 0.0), episode("a", 1.0), episode("a", 0.0), ks=(1, 2))

    assert row.tasks == 3
    assert values(row) == [0.5, 1.0]
    assert row.passes[1].tasks == 1


def test_only_what_is_left_out() -> None:
    (row,) = rows(episode(end="abandoned"), episode(end=None), by=("harness",))

    assert (row.episodes, row.infrastructure, row.open) == (0, 1, 1)
    assert (values(row), row.reward, row.turns, row.exact, row.seconds) == ([None], None, None, None, None)
    assert rows() == ()


def test_rows_and_their_order() -> None:
    some = [
        episode(harness="pi", version="policy-v10"),
        episode(harness="pi", version="policy-v2"),
        episode(harness="pi", version="base"),
        episode(harness="pi", version=None),
        episode(harness=None, version="base"),
        episode(harness="codex", version="policy-v2"),
    ]

    found = rows(*some, by=("harness", "version"))

    assert [tuple(value for _, value in row.labels) for row in found] == [
        ("codex", "policy-v2"),
        ("pi", "base"),
        ("pi", "policy-v2"),
        ("pi", "policy-v10"),
        ("pi", None),
        (None, "base"),
    ]
    assert len(rows(*some, by=())) == 1
    assert len(rows(*some, by=("task",))) == 1


def test_a_row_does_not_depend_on_the_others() -> None:
    mine = [episode(f"t{number}", number / 7, version="policy-v1") for number in range(8)]
    others = [episode(f"t{number}", 1.0, version="base") for number in range(5)]

    (alone,) = rows(*mine, by=("version",))

    assert rows(*mine, *others, by=("version",))[1] == alone
    assert rows(*reversed(mine), by=("version",))[0].passes == alone.passes


EPISODES = st.lists(
    st.builds(
        episode,
        st.sampled_from(("a", "b", "c", None)),
        st.sampled_from((None, 0.0, 0.5, 1.0)),
        end=st.sampled_from(("completed", "failed", "timed_out", "abandoned", None)),
        version=st.sampled_from(("base", "policy-v1", None)),
    ),
    max_size=20,
)


@settings(max_examples=40, deadline=None)
@given(EPISODES)
def test_every_episode_is_somewhere(some: list[EpisodeFacts]) -> None:
    found = rows(*some, by=("version",), ks=(1, 2, 3))

    assert sum(row.episodes + row.infrastructure + row.open for row in found) == len(some)
    for row in found:
        assert row.passed <= row.scored <= row.episodes
        rates = [value for value in values(row) if value is not None]
        assert all(0 <= value <= 1 for value in rates)
        assert (values(row)[0] is None) == (row.scored == 0)
        assert (values(row)[0] == 0) == (row.passed == 0 and row.scored > 0)


def pair(task: str, first: tuple[int, int], second: tuple[int, int]) -> list[EpisodeFacts]:
    """Episodes of a task under two versions: (how many, how many of them pass)."""
    sides = (("base", first), ("policy-v1", second))
    return [
        episode(task, float(number < passed), version=version)
        for version, (count, passed) in sides
        for number in range(count)
    ]


def test_two_versions() -> None:
    some = [
        *pair("won", (2, 0), (2, 1)),
        *pair("won too", (1, 0), (4, 4)),
        *pair("lost", (3, 3), (3, 2)),
        *pair("tie", (3, 1), (6, 2)),
        *pair("only old", (2, 1), (0, 0)),
        episode("won", end="abandoned", version="base"),
        episode("other", 1.0, version="policy-v2"),
        episode(None, 1.0, version="base"),
    ]

    (found,) = compare(some, "base", "policy-v1", by=("version",), pass_at=1.0, seed=0)

    assert [(one.task, one.first, one.second, one.outcome) for one in found.pairs] == [
        ("lost", (3, 3), (3, 2), "loss"),
        ("tie", (3, 1), (6, 2), "tie"),
        ("won", (2, 0), (2, 1), "win"),
        ("won too", (1, 0), (4, 4), "win"),
    ]
    assert (found.count("win"), found.count("loss"), found.count("tie"), found.unpaired) == (2, 1, 1, 1)
    assert found.p_value == mcnemar(2, 1)
    assert found.difference is not None
    assert found.difference.value == pytest.approx((-1 / 3 + 0 + 0.5 + 1) / 4)
    assert found.reward_difference is not None
    assert found.reward_difference.value == pytest.approx(found.difference.value)


def test_the_other_way_round() -> None:
    some = [*pair("a", (2, 0), (2, 1)), *pair("b", (2, 0), (2, 2)), *pair("c", (2, 2), (2, 1))]
    (one,) = compare(some, "base", "policy-v1", by=(), pass_at=1.0, seed=0)
    (other,) = compare(some, "policy-v1", "base", by=(), pass_at=1.0, seed=0)

    assert (one.count("win"), one.count("loss")) == (other.count("loss"), other.count("win")) == (2, 1)
    assert one.p_value == other.p_value
    assert one.difference is not None
    assert other.difference is not None
    assert one.difference.value == -other.difference.value


def test_a_comparison_for_each_harness() -> None:
    some = [
        episode("a", 0.0, version="base", harness="pi"),
        episode("a", 1.0, version="policy-v1", harness="pi"),
        episode("a", 1.0, version="base", harness="codex"),
    ]

    found = compare(some, "base", "policy-v1", by=("harness", "version", "task"), pass_at=1.0, seed=0)

    assert [(one.labels, len(one.pairs), one.unpaired) for one in found] == [
        ((("harness", "codex"),), 0, 1),
        ((("harness", "pi"),), 1, 0),
    ]
    assert (found[0].p_value, found[0].difference) == (1.0, None)
    assert found[1].difference is not None
    assert (found[1].difference.value, found[1].difference.low) == (1.0, None)
