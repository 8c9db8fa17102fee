"""From what was seen of a probe's runs to what it says of the harness. Pure.

Rules of this module: one function a question, each from the runs alone to findings; ``findings`` puts them in order. An
answer is a short word or a list of names that can be compared; what a person wants to know beside it is the detail.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from dragoman.rollout.probe.cases import CASES, DONE, NO_HEADERS, RETRY_AFTER, SUB_DONE, Case
from dragoman.rollout.probe.compare import changes, extra_headers, id_places, session_places
from dragoman.rollout.probe.records import CaseRun, Echo, Finding, Mark, SeenCall, SeenRequest, Weight
from dragoman.rollout.probe.tools import find_agent, find_shell
from dragoman.rollout.setups import Mode

__all__ = ["ending", "findings", "offered", "turns_of"]

Runs = Sequence[CaseRun]
TRIES = 0.05
"""Seconds by which a clock may be off."""


def findings(runs: Runs) -> tuple[Finding, ...]:
    """Everything that the runs say, in the order in which a person would ask. ``runs``: as they were made."""
    modes = tuple(dict.fromkeys(run.mode for run in runs))
    found: list[Finding] = []
    for mode in modes:
        found += reached(runs, mode)
    working = [mode for mode in modes if works(runs, mode)]
    if not working:
        return tuple(found)
    first = working[0]
    found += [*speaks(runs, first), *tools_found(runs, first), *session(runs, first)]
    for mode in working:
        found += turns(runs, mode)
    found += [*replay(runs, first), *ids(runs, first), *side_calls(runs), *sub_agents(runs, first)]
    found += [finding for run in runs if (finding := bad_reply(run)) is not None]
    found += [finding for run in runs if (finding := failure(run)) is not None]
    found += not_tried(runs)
    found += [*asked_besides(runs), *past_the_proxy(runs)]
    return tuple(found)


def run_of(runs: Runs, case: str, mode: Mode) -> CaseRun | None:
    return next((run for run in runs if (run.case, run.mode) == (case, mode)), None)


def works(runs: Runs, mode: Mode) -> bool:
    """Whether some call of the agent was answered in the way that this mode asks for."""
    return any(
        run.answered and any(request.way == mode and request.call_id for request in run.requests)
        for run in runs
        if run.mode == mode
    )


def offered(runs: Runs) -> SeenCall | None:
    """The call that offers the most tools: the agent's own, and not one that was made beside it."""
    calls = [call for run in runs for call in run.main]
    return max(calls, key=lambda call: len(call.tools), default=None)


# -- how it is reached -------------------------------------------------------------------------------------------------


def reached(runs: Runs, mode: Mode) -> Iterator[Finding]:
    about = "base URL" if mode == "base-url" else "proxy"
    here = [run for run in runs if run.mode == mode]
    requests = [request for run in here for request in run.requests]
    if any(request.way == mode for request in requests):
        others = sorted({request.host for request in requests if request.way != mode})
        detail = f"but some of its calls went to {', '.join(others)}" if others else ""
        yield Finding(about, "honoured", "bad" if others else "good", detail, mode)
    elif requests:
        yield Finding(about, "ignored", "bad", f"it asked {_list(request.host for request in requests)} instead", mode)
    else:
        yield Finding(about, "ignored", "bad", _silent(here), mode)
    if mode == "proxy":
        distrusted = {host for run in here for host in run.distrusted}
        if distrusted:
            detail = f"it refused the gateway's certificate for {_list(distrusted)}"
            yield Finding("CA", "not trusted", "bad", detail, mode)
        elif any(run.secure for run in here):
            yield Finding("CA", "trusted", "good", mode=mode)
        else:
            yield Finding("CA", "not seen", "not tried", "nothing came through a TLS connection", mode)
    refused = [call for run in here for call in run.calls if call.status == "refused"]
    if refused and not works(runs, mode):
        yield Finding("calls", "refused", "bad", refused[0].error or "", mode)


def _silent(runs: Runs) -> str:
    """Why there may be no request, from the run that should have made the first."""
    if not runs:
        return "it was not run"
    run = runs[0]
    how = "was stopped at the time limit" if run.exit_code is None else f"ended with {run.exit_code}"
    said = [line for line in f"{run.stdout}\n{run.stderr}".splitlines() if line.strip()]
    asked = f"; it looked up {_list(run.names)} past the proxy" if run.names else ""
    last = f"; the last that it said: {said[-1].strip()[:200]}" if said else "; it said nothing"
    return f"it asked for no reply and {how}{asked}{last}"


# -- what it says ------------------------------------------------------------------------------------------------------


def speaks(runs: Runs, mode: Mode) -> Iterator[Finding]:
    calls = [call for run in runs if run.mode == mode for call in run.main]
    yield Finding("dialect", _list(call.provider for call in calls))
    # behind a failure some ask again without
    streams = {call.stream for run in runs if run.case in ("text", "tools") for call in run.main}
    yield Finding("streams", "yes" if streams == {True} else "some calls" if True in streams else "no")
    if any(request.socket for run in runs for request in run.requests):
        yield Finding("WebSocket", "yes")
    text = run_of(runs, "text", mode)
    if text is not None:
        weight: Weight = "good" if text.exit_code == 0 else "bad"
        detail = "" if DONE in text.stdout else "what the model said is not in its output"
        yield Finding("after a plain text", how_it_ended(text), weight, detail)


def tools_found(runs: Runs, mode: Mode) -> Iterator[Finding]:
    call = offered([run for run in runs if run.mode == mode])
    tools = () if call is None else call.tools
    if not tools:
        yield Finding("tools", "none", detail="a harness that only talks: nothing that needs a tool was tried")
        return
    shell = find_shell(tools)
    names = f"{len(tools)} offered: {', '.join(tool.name for tool in tools)}"
    if shell is None:
        yield Finding("tools", "no shell", "plain", f"{names}; none runs a command, so no tool was called")
        return
    yield Finding("tools", f"{shell.tool.name}({shell.parameter})", "plain", names)
    run = run_of(runs, "tools", mode)
    if run is None:
        return
    marks = frozenset[int]().union(*(call.marks for call in run.calls))
    if 42 not in marks:
        detail = "the output of the command did not come back" + (", though it ran" if run.made else "")
        yield Finding("tool ran", "no", "bad", detail)
        return
    yield Finding("tool ran", "yes", "good")
    both = {43, 44} <= marks
    detail = "" if both else "of two calls in one reply not both results came back"
    yield Finding("two calls in one reply", "both ran" if both else "not both", "good" if both else "plain", detail)


def session(runs: Runs, mode: Mode) -> Iterator[Finding]:
    one, other = (run_of(runs, name, mode) for name in ("tools", "text"))
    if one is None:
        one, other = other, next((run for run in runs if run.mode == mode and run.case != "text" and run.main), None)
    if one is None or other is None:
        return
    places = session_places(main_requests(one), main_requests(other))
    if not places:
        detail = "its calls are told apart by the episode's credential and their messages"
        yield Finding("session id", "none", "plain", detail)
        return
    headers = [place for place in places if not place.startswith("body: ")] or list(places)
    rest = [place for place in places if place not in headers]
    yield Finding("session id", ", ".join(headers), "plain", f"also in {', '.join(rest)}" if rest else "")


# -- its turns ---------------------------------------------------------------------------------------------------------


def turns_of(run: CaseRun) -> tuple[str, ...]:
    """Of each answered call of the agent behind the first: ``exact``, ``anew``, or the reason of its fork."""
    return tuple("anew" if call.turn == "start" else call.turn for call in run.main[1:])


def turns(runs: Runs, mode: Mode) -> Iterator[Finding]:
    run = run_of(runs, "tools", mode)
    if run is None or len(run.main) < 2:
        return
    told = turns_of(run)
    exact = told.count("exact")
    others = Counter(turn for turn in told if turn != "exact")
    why = {
        "anew": "begins a new conversation: nothing that the model said is in it as the model's",
        "history_edited": "changes what was said before",
        "system_changed": "changes the system prompt",
        "tools_changed": "changes the tools",
        "unknown_parent": "has replies in its history that the model never gave",
    }
    detail = "; ".join(f"{count} {turn}: {why.get(turn, 'see the fork reasons')}" for turn, count in others.items())
    weight: Weight = "good" if not others else "plain" if exact else "bad"
    yield Finding("exact turns", f"{exact} of {len(told)}", weight, detail, mode)


def replay(runs: Runs, mode: Mode) -> Iterator[Finding]:
    run = run_of(runs, "tools", mode)
    if run is None:
        return
    requests = main_requests(run)
    found = tuple(dict.fromkeys(what for a, b in pairwise(requests) for what in changes(a, b)))
    if len(requests) > 1:
        detail = "; ".join(found[:8])
        yield Finding("history", "changed" if found else "verbatim", "plain" if found else "good", detail)
    echoes = [echo for call in run.main for echo in call.echoes]
    words: dict[Mark, str] = {"same": "verbatim", "changed": "changed", "missing": "left out"}
    for about, field in (("text", "text"), ("arguments", "arguments"), ("reasoning", "reasoning")):
        if (mark := _worst(echoes, field)) != "none":
            weight: Weight = "good" if mark == "same" else "plain"
            detail = "written anew, which does not matter" if (field, mark) == ("arguments", "changed") else ""
            yield Finding(f"replayed {about}", words[mark], weight, detail)


def ids(runs: Runs, mode: Mode) -> Iterator[Finding]:
    run = run_of(runs, "tools", mode)
    if run is None:
        return
    echoes = [echo for call in run.main for echo in call.echoes]
    for about, field in (("tool-call ids", "tool_ids"), ("signatures", "signature")):
        words: dict[Mark, str] = {"same": "echoed", "changed": "echoed inside others", "missing": "not echoed"}
        if (mark := _worst(echoes, field)) != "none":
            yield Finding(about, words[mark], "plain" if mark == "missing" else "good")
    requests = main_requests(run)
    places = {
        place
        for at, request in enumerate(requests)
        for place in id_places(request, [earlier.call_id for earlier in requests[:at] if earlier.call_id])
    }
    yield Finding("ids come back in", ", ".join(sorted(places)) or "no place")


def _worst(echoes: Iterable[Echo], field: str) -> Mark:
    order: tuple[Mark, ...] = ("none", "same", "changed", "missing")
    return max((getattr(echo, field) for echo in echoes), key=order.index, default="none")


def main_requests(run: CaseRun) -> list[SeenRequest]:
    """The agent's own requests that were answered, in order."""
    mine = {call.id for call in run.main}
    return [request for request in run.requests if request.call_id in mine]


# -- beside its turns --------------------------------------------------------------------------------------------------


def side_calls(runs: Runs) -> Iterator[Finding]:
    """Calls beside the agent's own, by kind, of those runs that have the most of them."""
    most: Counter[str] = Counter()
    for run in runs:
        if run.case in ("text", "tools"):
            most |= Counter(call.kind for call in run.answered if call.kind not in ("main", "subagent"))
    yield Finding("side calls", ", ".join(f"{count} {kind}" for kind, count in sorted(most.items())) or "none")


def sub_agents(runs: Runs, mode: Mode) -> Iterator[Finding]:
    call = offered([run for run in runs if run.mode == mode])
    agent = None if call is None else find_agent(call.tools)
    if agent is None:
        yield Finding("sub-agents", "none", detail="it offers no tool that starts one")
        return
    run = next((run for run in runs if run.case == "subagent"), None)
    if run is None:
        return
    theirs = [call for call in run.answered if SUB_DONE in call.said]
    if not theirs:
        detail = f"`{agent.tool.name}` is offered, but none asked for a reply"
        yield Finding("sub-agents", "not started", "plain", detail)
        return
    by_id = {request.call_id: request for request in run.requests}
    request = by_id.get(theirs[0].id)
    others = [by_id[call.id] for call in run.main if SUB_DONE not in call.said and call.id in by_id]
    headers = () if request is None else extra_headers(request, others)
    if theirs[0].kind == "subagent":
        yield Finding("sub-agents", "named", "good", f"by {', '.join(headers) or 'its headers'}")
    else:
        detail = "known by their conversation alone" + (
            f"; headers of their own: {', '.join(headers)}" if headers else ""
        )
        yield Finding("sub-agents", "not named", "plain", detail)


def asked_besides(runs: Runs) -> Iterator[Finding]:
    hosts = {host for run in runs for host in run.hosts}
    yield Finding(
        "hosts besides", ", ".join(sorted(hosts)) or "none", detail="answered by the gateway" if hosts else ""
    )


def past_the_proxy(runs: Runs) -> Iterator[Finding]:
    if any(run.names is None for run in runs):
        yield Finding("past the proxy", "not watched", "not tried", "that needs a network of its own (Linux, as root)")
        return
    names = sorted({name for run in runs for name in run.names or ()})
    tries = sum(run.no_route or 0 for run in runs)
    said = ([f"looked up {', '.join(names)}"] if names else []) + (
        [f"{tries} tries to connect outside"] if tries else []
    )
    yield Finding("past the proxy", "yes" if said else "nothing", "plain" if said else "good", "; ".join(said))


# -- what it makes of bad replies and failures -------------------------------------------------------------------------


def how_it_ended(run: CaseRun) -> str:
    if run.exit_code is None:
        return "does not end"
    return f"ends with {run.exit_code}" if run.exit_code >= 0 else f"ended by signal {-run.exit_code}"


def ending(run: CaseRun) -> str:
    """``recovers`` (the work is done in the end), ``ends`` (with 0, without it), ``fails``, or ``does not end``."""
    if run.exit_code is None:
        return "does not end"
    tools = any(call.tools and find_shell(call.tools) for call in run.main)
    done = any(42 in call.marks for call in run.calls) if tools else any(call.said == DONE for call in run.answered)
    if run.exit_code != 0:
        return "fails"
    return "recovers" if done else "ends"


_WEIGHTS: dict[str, Weight] = {"recovers": "good", "ends": "plain", "fails": "bad", "does not end": "bad"}


def bad_reply(run: CaseRun) -> Finding | None:
    """What it makes of a reply as a small model gives it; ``None``: the run was about something else."""
    if run.case not in ("broken-json", "wrong-args", "unknown-tool", "empty", "cut-text", "cut-call"):
        return None
    answer = ending(run)
    calls = len(run.main)
    detail = f"{calls} call{'' if calls == 1 else 's'}" + (
        "" if run.exit_code in (0, None) else f", exit code {run.exit_code}"
    )
    replayed = next((echo.call for one in run.main for echo in one.echoes if echo.call), "")
    if run.case == "broken-json" and replayed:
        detail += f", replayed as {replayed[:120]}"
    weight = "plain" if (run.case, answer) == ("empty", "ends") else _WEIGHTS[answer]
    return Finding(run.case, answer, weight, f"{detail} ({_case(run).what})")


def failure(run: CaseRun) -> Finding | None:
    """What it makes of a failure or a delay; ``None``: the run was about something else."""
    if run.case not in ("error-500", "error-429", "stream-failure", "silence", "long-silence", "no-headers"):
        return None
    gaps = [later.at - earlier.at for earlier, later in pairwise(run.requests)]
    answer = ending(run)
    case = _case(run)
    faulty = [at for at, request in enumerate(run.requests) if case.fault and request.status == case.fault.status]
    said = [f"{len(run.requests)} request{'' if len(run.requests) == 1 else 's'}"]
    if case.fault is not None and case.fault.status:
        if not faulty:
            return Finding(run.case, "not tried", "not tried", "no request came by HTTP")
        if faulty[0] < len(gaps):
            waited = gaps[faulty[0]]
            said.append(f"tried again after {waited:.1f} s")
            if run.case == "error-429":
                obeys = RETRY_AFTER - TRIES <= waited < RETRY_AFTER * 1.5
                said.append(f"{'as it was' if obeys else 'though'} told {RETRY_AFTER} s")
        else:
            said.append("not tried again")
    elif run.case == "no-headers":
        gone = [at for at, request in enumerate(run.requests) if request.status is None and at < len(gaps)]
        said.append(f"gave up after {gaps[gone[0]]:.0f} s and asked again" if gone else f"waited {NO_HEADERS:.0f} s")
    elif run.case.endswith("silence"):
        aborted = any(call.status == "aborted" for call in run.calls)
        gave_up = aborted or any(request.status is None for request in run.requests)
        said.append("gave up and asked again" if gave_up else "waited")
    return Finding(run.case, answer, _WEIGHTS[answer], f"{', '.join(said)} ({case.what})")


def not_tried(runs: Runs) -> Iterator[Finding]:
    tried = {run.case for run in runs}
    missing = [case.name for case in CASES if case.name not in tried and case.long]
    for name in missing:
        yield Finding(name, "not tried", "not tried", f"takes minutes: --long ({_named(name).what})")


def _case(run: CaseRun) -> Case:
    return _named(run.case)


def _named(name: str) -> Case:
    return next(case for case in CASES if case.name == name)


def _list(names: Iterable[str]) -> str:
    return ", ".join(sorted(set(names)))
