"""The table of what is known, and how a report is held against it."""

from typing import Any

import pytest

from dragoman.rollout.harnesses import HARNESSES
from scripts.probe_expected import EXPECTED, Fact, differences


def _report(verdict: str = "trainable as is", **answers: str) -> dict[str, Any]:
    findings = [{"about": about, "answer": answer, "detail": "by x-agent"} for about, answer in answers.items()]
    return {"verdict": verdict, "because": ["it hangs"], "findings": findings}


def test_every_harness_has_its_facts() -> None:
    assert list(EXPECTED) == [harness.name for harness in HARNESSES]
    assert all(len(facts) > 10 for facts in EXPECTED.values())


@pytest.mark.parametrize("name", list(EXPECTED))
def test_no_fact_contradicts_another(name: str) -> None:
    answers: dict[str, str] = {}
    for fact in EXPECTED[name]:
        assert answers.setdefault(fact.about, fact.answer) == fact.answer


def test_what_is_as_known_is_no_difference() -> None:
    facts = [Fact("empty", "ends"), Fact("agents", "na…", ("x-agent",))]

    assert differences(facts, _report(empty="ends", agents="named")) == []


@pytest.mark.parametrize(
    ("fact", "said"),
    [
        (Fact("empty", "fails"), "empty: ends by x-agent; expected fails"),
        (Fact("empty", "en"), "empty: ends by x-agent; expected en"),
        (Fact("empty", "ends", ("2 calls",)), "empty: ends by x-agent; expected in it '2 calls'"),
        (Fact("streams", "yes"), "streams: nothing was found, expected yes"),
    ],
)
def test_what_differs_is_told(fact: Fact, said: str) -> None:
    assert differences([fact], _report(empty="ends")) == [said]


def test_a_verdict_that_is_wrong() -> None:
    assert differences([], _report("not trainable")) == ["it is said not to be trainable: it hangs"]
