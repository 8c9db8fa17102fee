"""The verdict, and that it says why."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dragoman.rollout.probe.records import CaseRun, Report
from dragoman.rollout.probe.verdict import judge
from tests.rollout.probe.runs import call, request, run, text, tools

NOWHERE: dict[str, Any] = {"requests": (), "calls": ()}


def _report(*runs: CaseRun, told: Sequence[str] = ()) -> Report:
    return judge(runs, what="x", isolated=True, told=told)


def test_as_it_is() -> None:
    report = _report(text(), tools(), text("proxy"), tools("proxy"))

    assert (report.verdict, report.settings, report.because, report.notes) == ("trainable as is", (), (), ())


def test_what_it_must_be_told_is_a_setting() -> None:
    report = _report(text(), tools(), told=["a file"])

    assert (report.verdict, report.settings) == ("trainable with these settings", ("a file",))


def test_one_way_in_is_enough_and_the_other_is_said_to_be_none() -> None:
    report = _report(text(**{**NOWHERE, "requests": (request(1, "proxy"),)}), text("proxy"), tools("proxy"))

    assert report.verdict == "trainable with these settings"
    assert report.settings == (
        "`--mode proxy`, since by base URL it does not work (base URL ignored: it asked api.openai.com instead)",
    )


def test_a_harness_that_does_not_end_needs_a_time_limit() -> None:
    report = _report(text(exit_code=None), tools())

    assert report.verdict == "trainable with these settings"
    assert "time limit" in report.settings[0]


def test_nothing_that_reaches_the_gateway() -> None:
    report = _report(text(**NOWHERE, exit_code=1, stderr="boom"), text("proxy", **NOWHERE, secure=False))

    assert report.verdict == "not trainable"
    assert report.because[0].startswith("base URL ignored: it asked for no reply and ended with 1")
    assert report.because[1].startswith("proxy ignored: ")


def test_turns_that_never_continue() -> None:
    anew = replace(
        tools(turns=("start", "start")), requests=(request(1), request(2), request(3, body={"messages": []}))
    )
    report = _report(text(), anew, told=["a file"])

    assert (report.verdict, report.settings) == ("not trainable", ())
    assert "none of its 2 later turns continues" in report.because[0]
    assert "messages: 2 items became 0" in report.because[1]


def test_one_exact_turn_makes_it_trainable_with_a_note() -> None:
    report = _report(text(), tools(turns=("exact", "history_edited")))

    assert report.verdict == "trainable as is"
    assert "several traces" in report.notes[0]


def test_weak_sides_are_notes() -> None:
    ends = run("error-500", calls=(), exit_code=1, requests=(request(1, status=500, call_id=None),))
    report = _report(text(), tools(names=("x.com",)), ends)

    assert report.verdict == "trainable as is"
    assert [note.split(":")[0] for note in report.notes] == [
        "one failure of the server ends its run",
        "something goes past the proxy (looked up x.com)",
    ]


def test_a_harness_that_only_talks() -> None:
    report = _report(run("text", calls=(call(1, "start", tools=()),)))

    assert report.verdict == "trainable as is"
    assert report.notes == ("it calls no tools, so its turns were not tried",)
