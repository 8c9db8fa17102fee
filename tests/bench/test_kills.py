"""The campaigns' judgement, on what must not pass; and two real kills over each kind of store."""

from pathlib import Path
from typing import Any

import pytest

from bench.kills import campaign, continuations, figures, judge
from bench.talkers import Sent
from dragoman.addons.blobs import message_blob, reply_blob
from dragoman.addons.messages import Message, TextPart, ToolCallPart
from dragoman.store.records import CallInfo, CallStatus
from tests.models import tiny_model_folder
from tests.store_calls import Episode


def stored(*calls: tuple[str, str, CallStatus], words: str = "Hello.") -> dict[str, list[CallInfo]]:
    """Calls of one episode, each by id, marker of its newest message, and status."""
    episode = Episode("e1")
    parent = None
    for call_id, marker, status in calls:
        message = message_blob(Message("user", (TextPart(f"Go on: {marker}"),)))
        reply = reply_blob((TextPart(words), ToolCallPart("t", "read", '{"path": "a"}')))
        if status == "arrived":
            episode.end(call_id, "arrived")
            continue
        prompt = [1, 2] if parent is None else [*episode.stream(parent), 9]
        episode.add(call_id, prompt, [3, 4], parent=parent, status=status, messages=(message,), reply=reply)
        parent = call_id
    return {"e1": episode.calls}


def sent(call_id: str | None, marker: str, **more: Any) -> Sent:
    values: dict[str, Any] = {"phase": "done", "said": "Hello.|read {'path': 'a'}", "status": 200, "follows": None}
    return Sent("0", "e1", marker, call_id=call_id, **(values | more))


def test_what_is_right_passes() -> None:
    log = [sent("c1", "m1"), sent("c2", "m2", follows="c1"), sent(None, "m3", phase="nothing", status=None, said="")]
    calls = stored(("c1", "m1", "answered"), ("c2", "m2", "answered"), ("c3", "m3", "answered"))
    assert judge(log, calls) == []
    assert continuations(log, calls) == (1, [])


@pytest.mark.parametrize(
    ("log", "calls", "said"),
    [
        ([sent("c1", "m1", phase="acted")], stored(), "acted on call c1, which is not stored"),
        ([sent("c1", "m1")], stored(("c1", "m1", "aborted")), "acted on call c1, which is stored as aborted"),
        ([sent("c1", "m1")], stored(("c1", "m1", "arrived")), "acted on call c1, which is stored as open"),
        ([sent(None, "m1")], stored(("c1", "m1", "answered")), "a client acted on a reply without an id"),
        ([sent("c1", "m1")], stored(("c1", "m1", "answered"), words="Other."), 'call c1 says "Other.'),
        ([sent("c1", "m1", phase="words")], stored(("c1", "m1", "arrived")), "call c1 is open"),
        ([sent("c1", "m1")], stored(("c1", "m1", "answered"), ("c2", "m1", "answered")), "2 calls are stored, 1 were"),
        (
            [sent("c1", "m1"), sent("c2", "m2")],
            stored(("c1", "m1", "answered"), ("c2", "m1", "answered")),
            "m1 was sent 1 times, and is stored 2 times",
        ),
    ],
)
def test_what_is_wrong_is_said(log: list[Sent], calls: dict[str, list[CallInfo]], said: str) -> None:
    assert any(said in problem for problem in judge(log, calls or {"e1": []}))


def test_a_call_that_went_on_from_something_else() -> None:
    calls = stored(("c1", "m1", "answered"), ("c2", "m2", "answered"), ("c3", "m3", "answered"))
    exact, others = continuations([sent("c3", "m3", follows="c1")], calls)
    assert exact == 0
    assert "call c3 goes on from c2, not from c1" in others[0]


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
async def test_two_kills(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if kind == "postgresql":
        request.getfixturevalue("postgres")  # skips where there is none
    found = await campaign(tmp_path, kind, 2, 0, 1, str(tiny_model_folder()))
    assert [one.problems for one in found.rounds] == [[], []]
    assert all(one.in_flight >= 8 for one in found.rounds)
    assert all(figure["met"] for figure in figures(found.rounds))
