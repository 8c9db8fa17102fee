"""From runs to findings."""

from dataclasses import replace
from typing import Any

import pytest

from dragoman.rollout.probe.cases import SUB_DONE
from dragoman.rollout.probe.judge import ending, findings
from dragoman.rollout.probe.records import CaseRun, Finding
from tests.rollout.probe.runs import BASH, GOOD, TASK, call, request, run, text, tools


def _found(*runs: CaseRun) -> dict[str, Finding]:
    """The findings by name; of those with a mode the last one."""
    return {finding.about: finding for finding in findings(runs)}


def test_a_harness_that_does_everything_well() -> None:
    found = _found(text(), tools(), text("proxy"), tools("proxy"))

    answers = {about: finding.answer for about, finding in found.items() if finding.weight != "not tried"}
    assert answers == {
        "base URL": "honoured",
        "proxy": "honoured",
        "CA": "trusted",
        "dialect": "openai_chat",
        "streams": "yes",
        "after a plain text": "ends with 0",
        "tools": "bash(command)",
        "tool ran": "yes",
        "two calls in one reply": "both ran",
        "session id": "none",
        "exact turns": "2 of 2",
        "history": "verbatim",
        "replayed text": "verbatim",
        "replayed arguments": "verbatim",
        "replayed reasoning": "verbatim",
        "tool-call ids": "echoed",
        "ids come back in": "no place",
        "side calls": "none",
        "sub-agents": "none",
        "hosts besides": "none",
        "past the proxy": "nothing",
    }
    assert {finding.weight for finding in found.values()} <= {"good", "plain", "not tried"}


def test_a_base_url_that_is_ignored_is_told_from_one_that_nothing_came_by() -> None:
    by_proxy = text(requests=(request(1, "proxy"),))
    silent = text(requests=(), calls=(), exit_code=3, stderr="no key\n", names=("api.x.com",))

    ignored, nothing = _found(by_proxy)["base URL"], _found(silent)["base URL"]
    assert (ignored.answer, ignored.detail) == ("ignored", "it asked api.openai.com instead")
    assert nothing.detail == (
        "it asked for no reply and ended with 3; it looked up api.x.com past the proxy; the last that it said: no key"
    )


def test_a_certificate_that_is_refused() -> None:
    found = _found(text("proxy", requests=(), calls=(), secure=False, distrusted=("api.openai.com",)))["CA"]

    assert (found.answer, found.weight) == ("not trusted", "bad")
    assert "api.openai.com" in found.detail


def test_a_dialect_that_is_refused_says_why() -> None:
    refused = call(1, "start", status="refused", error="messages[0]: no audio")
    found = _found(run("text", calls=(refused,), requests=(request(1, status=400, call_id=None),)))["calls"]

    assert (found.answer, found.detail) == ("refused", "messages[0]: no audio")


@pytest.mark.parametrize(
    ("turns", "answer", "weight"),
    [
        (("exact", "exact"), "2 of 2", "good"),
        (("exact", "history_edited"), "1 of 2", "plain"),
        (("history_edited", "history_edited"), "0 of 2", "bad"),
        (("start", "start"), "0 of 2", "bad"),
    ],
)
def test_turns(turns: tuple[str, str], answer: str, weight: str) -> None:
    found = _found(text(), tools(turns=turns))["exact turns"]

    assert (found.answer, found.weight) == (answer, weight)
    assert ("anew" in found.detail) == ("start" in turns)
    assert ("changes what was said" in found.detail) == ("history_edited" in turns)


@pytest.mark.parametrize(
    ("echo", "about", "answer"),
    [
        (replace(GOOD, arguments="changed"), "replayed arguments", "changed"),
        (replace(GOOD, reasoning="missing"), "replayed reasoning", "left out"),
        (replace(GOOD, text="changed"), "replayed text", "changed"),
        (replace(GOOD, tool_ids="changed"), "tool-call ids", "echoed inside others"),
        (replace(GOOD, tool_ids="missing"), "tool-call ids", "not echoed"),
        (replace(GOOD, signature="same"), "signatures", "echoed"),
    ],
)
def test_the_worst_echo_counts(echo: Any, about: str, answer: str) -> None:
    calls = (call(1, "start"), call(2, echoes=(GOOD,)), call(3, echoes=(echo,)))

    assert _found(text(), run("tools", calls=calls))[about].answer == answer


def test_a_changed_history_is_told_by_its_places() -> None:
    last = request(3, body={"messages": [{"role": "user", "content": "other"}]})
    found = _found(text(), tools(requests=(request(1), request(2), last)))["history"]

    assert found.answer == "changed"
    assert found.detail == "messages: 2 items became 1; messages.content changed"


def test_a_session_header() -> None:
    first = text(requests=(request(1, headers={"session-id": "session-1111"}),))
    second = tools(requests=tuple(request(n, headers={"session-id": "session-2222"}) for n in (1, 2, 3)))

    assert _found(first, second)["session id"].answer == "session-id"


def test_tools_that_are_not_there_or_run_nothing() -> None:
    none = run("text", calls=(call(1, "start", tools=()),))
    other = run("text", calls=(call(1, "start", tools=(TASK,)),))
    silent = run("tools", calls=(call(1, "start"), call(2)), made=False)

    assert _found(none)["tools"].answer == "none"
    assert _found(other)["tools"].answer == "no shell"
    assert _found(text(), silent)["tool ran"].answer == "no"


@pytest.mark.parametrize(("kind", "answer"), [("subagent", "named"), ("main", "not named")])
def test_sub_agents(kind: str, answer: str) -> None:
    starts = text(calls=(call(1, "start", tools=(BASH, TASK)),))
    theirs = call(2, "start", kind=kind, said=SUB_DONE)
    requests = (request(1), request(2, headers={"x-agent": "1"}))
    started = run("subagent", calls=(call(1, "start"), theirs), requests=requests)

    found = _found(starts, started)["sub-agents"]
    assert (found.answer, "x-agent" in found.detail) == (answer, True)
    assert _found(starts, run("subagent", calls=(call(1, "start"),)))["sub-agents"].answer == "not started"


@pytest.mark.parametrize(
    ("changes", "answer"),
    [
        ({}, "recovers"),
        ({"calls": (call(1, "start"),)}, "ends"),
        ({"exit_code": 1}, "fails"),
        ({"exit_code": None}, "does not end"),
    ],
)
def test_how_a_bad_reply_is_taken(changes: dict[str, Any], answer: str) -> None:
    recovered = run("broken-json", calls=(call(1, "start"), call(2, marks=frozenset({42}))))
    one = replace(recovered, **changes)

    assert ending(one) == answer
    assert _found(text(), one)["broken-json"].answer == answer


def test_how_a_call_that_is_no_json_is_replayed() -> None:
    echo = replace(GOOD, call='invalid {"tool": "bash"}')
    one = run("broken-json", calls=(call(1, "start"), call(2, marks=frozenset({42}), echoes=(echo,))))

    assert 'replayed as invalid {"tool": "bash"}' in _found(text(), one)["broken-json"].detail


def test_a_harness_without_tools_recovers_when_it_is_told_the_end() -> None:
    talked = run("error-500", calls=(call(1, "start", tools=(), said="I wrote the file."),))

    assert ending(talked) == "recovers"
    assert ending(replace(talked, calls=())) == "ends"


@pytest.mark.parametrize(
    ("second", "told"), [(5.1, "as it was told 3 s"), (2.5, "though told 3 s"), (9.0, "though told 3 s")]
)
def test_a_429_that_is_waited_for(second: float, told: str) -> None:
    failed = request(2, status=429, call_id=None)
    retried = run("error-429", calls=(call(3, marks=frozenset({42})),), requests=(failed, request(3, at=second)))

    found = _found(text(), retried)["error-429"]
    assert f"tried again after {second - 2:.1f} s, {told}" in found.detail
    assert "not tried again" in _found(text(), replace(retried, requests=(failed,)))["error-429"].detail


def test_a_failure_that_no_request_met_is_not_tried() -> None:
    assert _found(text(), run("error-500", calls=(call(1),)))["error-500"].answer == "not tried"


def test_patience() -> None:
    waited = run("silence", calls=(call(1, "start"), call(2, marks=frozenset({42}))))
    left = replace(waited, requests=(request(1, status=None, call_id=None), request(2, at=400.0)))

    assert "waited" in _found(text(), waited)["silence"].detail
    assert "gave up" in _found(text(), left)["silence"].detail
    assert "gave up after 399 s" in _found(text(), replace(left, case="no-headers"))["no-headers"].detail
    assert _found(text())["no-headers"].answer == "not tried"


def test_what_it_asks_besides_and_past_the_proxy() -> None:
    found = _found(text(hosts=("github.com",), names=("api.github.com",), no_route=2))

    assert found["hosts besides"].answer == "github.com"
    assert found["past the proxy"].detail == "looked up api.github.com; 2 tries to connect outside"
    assert _found(text(names=None))["past the proxy"].answer == "not watched"


def test_side_calls_are_counted_in_the_run_that_has_most() -> None:
    title = call(4, "start", kind="side", tools=())
    busy = tools()

    found = _found(text(), replace(busy, calls=(*busy.calls, title, replace(title, id="call5"))))
    assert found["side calls"].answer == "2 side"
