"""Runs as a probe sees them, made by hand."""

from dataclasses import replace
from typing import Any

from dragoman.rollout.probe.cases import DONE
from dragoman.rollout.probe.records import CaseRun, Echo, SeenCall, SeenRequest
from dragoman.rollout.probe.tools import OfferedTool
from dragoman.rollout.setups import Mode

STRING = {"type": "string"}
BASH = OfferedTool("bash", "", {"type": "object", "properties": {"command": STRING}})
TASK = OfferedTool("task", "", {"type": "object", "properties": {"prompt": STRING}})
GOOD = Echo(text="same", arguments="same", reasoning="same", signature="none", tool_ids="same")


def call(number: int, turn: str = "exact", **more: Any) -> SeenCall:
    plain = SeenCall(
        id=f"call{number}",
        kind="main",
        status="answered",
        error=None,
        provider="openai_chat",
        harness=None,
        thread=None,
        stream=True,
        parent_id=None,
        turn=turn,
        tools=(BASH,),
        said="",
        marks=frozenset(),
    )
    return replace(plain, **more)


def request(number: int, way: Mode = "base-url", **more: Any) -> SeenRequest:
    host = "127.0.0.1" if way == "base-url" else "api.openai.com"
    body = {"messages": [{"role": "user", "content": str(n)} for n in range(number)]}
    plain = SeenRequest(float(number), "openai_chat", way, host, 200, f"call{number}", {}, body)
    return replace(plain, **more)


def run(case: str, mode: Mode = "base-url", calls: tuple[SeenCall, ...] = (), **more: Any) -> CaseRun:
    """A run whose requests, unless given, are those of its calls, by the mode's own way."""
    plain = CaseRun(
        case=case,
        mode=mode,
        exit_code=0,
        seconds=1.0,
        requests=tuple(request(int(one.id.removeprefix("call")), mode) for one in calls),
        calls=calls,
        steps=(),
        hosts=(),
        secure=mode == "proxy",
        distrusted=(),
        names=(),
        no_route=0,
        made=True,
        stdout=DONE,
        stderr="",
    )
    return replace(plain, **more)


def text(mode: Mode = "base-url", **more: Any) -> CaseRun:
    return run("text", mode, **{"calls": (call(1, "start", said=DONE),), **more})


def tools(mode: Mode = "base-url", turns: tuple[str, ...] = ("exact", "exact"), **more: Any) -> CaseRun:
    """A run of three turns."""
    first = call(1, "start")
    second = call(2, turns[0], marks=frozenset({42}), echoes=(GOOD,))
    third = call(3, turns[1], marks=frozenset({42, 43, 44}), echoes=(GOOD,), said=DONE)
    return run("tools", mode, (first, second, third), **more)
