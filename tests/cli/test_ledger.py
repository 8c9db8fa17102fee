"""``dragoman ledger``: the sums, the excluded calls with their reasons, and an exit code that says whether they fit."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from mitmproxy import connection, http, websocket
from mitmproxy.io import FlowReader, FlowWriter
from wsproto.frame_protocol import Opcode

from dragoman.cli.ledger import read_flows
from dragoman.store.flow_calls import FlowCall

ANSWERED, REFUSED, SIDE, OPEN = (
    "call0000000000000001",
    "call0000000000000002",
    "call0000000000000003",
    "dall0000000000000004",
)


def test_an_episode(run: Callable[..., Any], filled_store: str) -> None:
    result = run("ledger", "abcd")
    assert result.code == 0
    facts = {line[:13].strip(): line[14:].strip() for line in result.out.splitlines()[:5]}
    assert facts == {
        "episode": "abcdefgh1234",
        "calls": "4 arrived = 2 answered + 1 refused + 0 failed + 0 aborted + 1 open",
        "tokens": "4 sampled = 3 in 1 trace + 1 excluded",
        "excluded": "side 1 (1 call), refused 0 (1 call), open 0 (1 call)",
        "database": filled_store,
    }
    rows = [line.rstrip().split(maxsplit=5) for line in result.out.splitlines() if line[:1].isdigit()]
    assert rows == [
        ["2", REFUSED, "main", "refused", "0", "refused with 400: unsupported: no [audio] here"],
        ["3", SIDE, "side", "side", "1", "side call"],
        ["4", OPEN, "main", "open", "0", "no outcome yet: it is running, or its gateway was killed"],
    ]
    assert result.out.endswith("\nIt balances.\n")


def test_all_episodes(run: Callable[..., Any], filled_store: str) -> None:
    result = run("ledger", "--all")
    assert result.code == 0
    assert "episodes      all 1 with calls\n" in result.out
    assert "4 sampled = 3 in 1 trace + 1 excluded" in result.out
    assert SIDE not in result.out
    shown, one = json.loads(run("ledger", "--all", "--json").out), json.loads(run("ledger", "abcd", "--json").out)
    assert shown.pop("episode") == "all 1 with calls"
    assert one.pop("episode") == "abcdefgh1234"
    assert shown == one


def test_json(run: Callable[..., Any], filled_store: str) -> None:
    assert json.loads(run("ledger", "abcd", "--json").out) == {
        "episode": "abcdefgh1234",
        "calls": {"arrived": 4, "answered": 2, "observed": 0, "refused": 1, "failed": 0, "aborted": 0, "open": 1},
        "sampled_tokens": 4,
        "traced_tokens": 3,
        "traces": 1,
        "excluded_tokens": {"side": 1, "refused": 0, "open": 0},
        "excluded_calls": {"refused": [REFUSED], "side": [SIDE], "open": [OPEN]},
        "flow_calls": None,
        "problems": [],
        "balances": True,
        "store": filled_store,
    }


def test_an_episode_without_calls(run: Callable[..., Any], filled_store: str) -> None:
    result = run("ledger", "abz")
    assert result.code == 0
    assert result.out.startswith("episode       abzzzzzzzzzz\ncalls         0 arrived")
    assert "excluded      nothing" in result.out


@pytest.mark.parametrize("which", ["abcd", "--all"])
def test_a_store_that_does_not_add_up_ends_with_1(run: Callable[..., Any], filled_store: str, which: str) -> None:
    from sqlalchemy import update

    from dragoman.store.database import Database
    from dragoman.store.models import Call

    database = Database.open(filled_store)
    with database.session() as session:  # the second keeps part of the first and gives no reason
        session.execute(update(Call).where(Call.id == SIDE).values(parent_id=ANSWERED, shared_len=2, prompt_len=4))
    database.close()
    result = run("ledger", which)
    assert result.code == 1
    assert "It does not balance:" in result.out
    assert f"- call '{SIDE}' keeps 2 of the 7 tokens of its parent '{ANSWERED}', but names no fork reason" in result.out
    shown = run("ledger", which, "--json")
    assert (shown.code, json.loads(shown.out)["balances"]) == (1, False)


def test_all_reads_no_token(run: Callable[..., Any], filled_store: str) -> None:
    """So that it is quick over a whole store: tokens that nobody could read do not disturb it."""
    from sqlalchemy import update

    from dragoman.store.database import Database
    from dragoman.store.models import Call

    database = Database.open(filled_store)
    with database.session() as session:
        session.execute(update(Call).values(prompt_ids=b"?", completion_ids=b"?", logprobs=b"?", messages=b"?"))
    database.close()
    assert run("ledger", "--all").code == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "name one episode, or say --all"),
        (["abcd", "--all"], "name one episode, or say --all"),
        (["zzz"], "no episode or call has an id that begins with 'zzz'"),
        (["abcd", "--flows", "/nowhere/x.flows"], "--flows /nowhere/x.flows cannot be read: No such file"),
        (["abcd", "--flows", __file__], "is no file of saved flows, or damaged"),
    ],
)
def test_what_cannot_be_done_is_said(
    run: Callable[..., Any], filled_store: str, arguments: list[str], says: str
) -> None:
    result = run("ledger", *arguments)
    assert result.code == 1
    assert says in result.err


# -- saved flows -----------------------------------------------------------------------------------------------------


def saved(
    path: str,
    reply: dict[str, Any] | bytes | None,
    status: int = 200,
    origin: str = "https://api.anthropic.com",
    at: float = 0.0,
) -> http.HTTPFlow:
    """A flow as the gateway saves it; ``reply`` ``None``: the client left before it."""
    client = connection.Client(peername=("127.0.0.1", 1), sockname=("127.0.0.1", 2))
    flow = http.HTTPFlow(client, connection.Server(address=("127.0.0.1", 3)))
    flow.request = http.Request.make("POST", origin + path, b"{}")
    flow.request.timestamp_start = flow.request.timestamp_end = at
    if reply is not None:
        content = reply if isinstance(reply, bytes) else json.dumps(reply).encode()
        flow.response = http.Response.make(status, content)
    return flow


def write_flows(file: Path, *flows: http.HTTPFlow) -> Path:
    with file.open("wb") as stream:
        writer = FlowWriter(stream)  # type: ignore[no-untyped-call]
        for flow in flows:
            writer.add(flow)
    return file


HEARD = (
    saved("/v1/messages?beta=true", {"id": f"msg_{ANSWERED}"}),
    saved("/v1/messages", {"error": {"message": "no"}, "request_id": f"req_{REFUSED}"}, 400),
    saved("/v1/messages", b'event: message_start\ndata: {"message":{"id":"msg_' + SIDE.encode() + b'"}}\n\n'),
)


def test_read_flows_keeps_generation_requests_that_came_whole(tmp_path: Path) -> None:
    torn = saved("/v1/messages", None)
    torn.request.timestamp_end = None
    flows = [
        saved("/v1/messages?beta=true", {"id": f"msg_{ANSWERED}"}, at=5.0),
        saved("/v1/messages/count_tokens", {"input_tokens": 1}),
        saved("/v1/models", {"data": []}),
        saved("/anything", b"", origin="https://example.com"),
        torn,
        saved("/v1/chat/completions", None, origin="http://localhost:8080"),
        saved("/v1/chat/completions", {"error": {}}, 503, origin="http://gateway.example"),
        saved("/v1/chat/completions", {"id": "chatcmpl-1"}, origin="https://elsewhere.example"),
        saved("/api/v1/chat/completions", {"id": f"chatcmpl-{SIDE}"}, origin="https://openrouter.ai"),
    ]
    assert list(read_flows(write_flows(tmp_path / "x.flows", *flows))) == [
        FlowCall("/v1/messages", 5.0, 200, ANSWERED),
        FlowCall("/v1/chat/completions", 0.0, None, None),
        FlowCall("/v1/chat/completions", 0.0, 503, None),
        FlowCall("/api/v1/chat/completions", 0.0, 200, SIDE),
    ]


def test_read_flows_takes_the_calls_of_a_socket(tmp_path: Path) -> None:
    flow = saved("/v1/responses", b"", 101, origin="http://127.0.0.1:8080", at=4.0)
    flow.request.method = "GET"
    flow.websocket = websocket.WebSocketData(
        messages=[
            websocket.WebSocketMessage(Opcode.TEXT, True, b'{"type":"response.create","input":[]}', 5.0),
            websocket.WebSocketMessage(Opcode.TEXT, False, b'{"response":{"id":"resp_' + SIDE.encode() + b'"}}', 6.0),
        ]
    )

    assert list(read_flows(write_flows(tmp_path / "x.flows", flow))) == [FlowCall("/v1/responses", 5.0, 200, SIDE)]


@pytest.mark.parametrize("which", ["abcd", "--all"])
def test_flows_that_agree(run: Callable[..., Any], filled_store: str, tmp_path: Path, which: str) -> None:
    files = write_flows(tmp_path / "1.flows", *HEARD[:2]), write_flows(tmp_path / "2.flows", *HEARD[2:])
    result = run("ledger", which, "--flows", str(files[0]), "--flows", str(files[1]))
    assert (result.code, result.out.count("flows         3 calls\n")) == (0, 1)


def test_flows_that_differ_end_with_1(run: Callable[..., Any], filled_store: str, tmp_path: Path) -> None:
    stranger = saved("/v1/messages", {"id": "msg_abcdefghij0123456789"})
    file = write_flows(tmp_path / "x.flows", *HEARD[1:], stranger)
    result = run("ledger", "abcd", "--flows", str(file))
    assert result.code == 1
    assert (
        "- a flow of /v1/messages with status 200 was answered as call 'abcdefghij0123456789', which is not"
        in result.out
    )
    assert f"- call '{ANSWERED}' was answered, but is in no flow" in result.out
    shown = json.loads(run("ledger", "abcd", "--flows", str(file), "--json").out)
    assert (shown["flow_calls"], len(shown["problems"]), shown["balances"]) == (3, 2, False)


def test_calls_before_the_first_flow_are_not_looked_for(
    run: Callable[..., Any], filled_store: str, tmp_path: Path
) -> None:
    """The store's calls arrived at 1000 to 1003 s."""
    third = saved("/v1/messages", {"id": f"msg_{SIDE}"}, at=1001.5)
    assert run("ledger", "abcd", "--flows", str(write_flows(tmp_path / "x.flows", third))).code == 0
    assert run("ledger", "abcd", "--flows", str(write_flows(tmp_path / "none.flows"))).code == 0


STEPS: list[dict[str, Any]] = [
    {"match": "HOLD", "text": "one two three", "hold": "last", "repeat": True},
    {"text": "Hello there.", "repeat": True},
]


def test_a_real_gateway_and_the_flows_it_saved(run: Callable[..., Any], tmp_path: Path) -> None:
    """Whole and streamed replies in every dialect, refusals, strangers, and a client that left: all found again."""
    from tests.gateway import running_gateway
    from tests.scripted import scripted_engine

    flows = tmp_path / "all.flows"
    say = {"model": "m", "max_tokens": 20, "messages": [{"role": "user", "content": "Hi"}]}
    requests: list[tuple[str, dict[str, Any]]] = [
        ("/v1/messages?beta=true", say),
        ("/v1/messages", {**say, "stream": True}),
        ("/v1/messages", {**say, "messages": 5}),
        ("/v1/messages/count_tokens", say),
        ("/v1/chat/completions", say),
        ("/v1/chat/completions", {**say, "stream": True}),
        ("/v1/chat/completions", {**say, "messages": 5}),
        ("/v1/completions", {"model": "m", "max_tokens": 20, "prompt": "Hi"}),
        ("/v1/responses", {"model": "m", "input": "Hi"}),
        ("/v1/responses", {"model": "m", "input": "Hi", "stream": True}),
        ("/v1beta/models/m:generateContent", {"contents": [{"role": "user", "parts": [{"text": "Hi"}]}]}),
        (
            "/v1beta/models/m:streamGenerateContent?alt=sse",
            {"contents": [{"role": "user", "parts": [{"text": "Hi"}]}]},
        ),
        ("/v1beta/models/m:generateContent", {"contents": 5}),
    ]
    with (
        scripted_engine(STEPS) as engine,
        running_gateway(tmp_path / "home", engine.address, "-w", str(flows)) as gateway,
        httpx.Client(base_url=gateway.address, trust_env=False, timeout=30) as client,
    ):
        episode = gateway.open()
        key = {"authorization": f"Bearer {episode.api_key}"}
        statuses = [client.post(path, json=body, headers=key).status_code for path, body in requests]
        assert statuses == [400 if 5 in body.values() else 200 for _, body in requests]
        assert client.post("/v1/messages", json=say).status_code == 401
        held = {**say, "stream": True, "messages": [{"role": "user", "content": "HOLD"}]}
        with client.stream("POST", "/v1/messages", json=held, headers=key) as reply:
            for chunk in reply.iter_bytes():
                if b"text_delta" in chunk:
                    break  # and leave
        store = gateway.store_url
    found = run("ledger", episode.id, "--store", store, "--flows", str(flows), "--json")
    shown = json.loads(found.out)
    assert shown["problems"] == []
    assert shown["flow_calls"] == 14  # one without a token, and not the count of tokens
    counts = {"answered": 9, "observed": 0, "refused": 3, "failed": 0, "aborted": 1, "open": 0}
    assert shown["calls"] == {"arrived": 13, **counts}
    assert shown["excluded_tokens"]["aborted"] > 0
    assert found.code == 0
    assert run("ledger", "--all", "--store", store, "--flows", str(flows)).code == 0
    with flows.open("rb") as stream:
        kept = [flow for flow in FlowReader(stream).stream() if isinstance(flow, http.HTTPFlow)]
    lost = next(flow for flow in kept if flow.request.path == "/v1/messages")
    some = write_flows(tmp_path / "some.flows", *(flow for flow in kept if flow is not lost))
    without = run("ledger", "--all", "--store", store, "--flows", str(some))
    assert without.code == 1
    assert without.out.count("was answered, but is in no flow") == 1
