"""What a call walks through, apart from the transports: bodies, and which earlier reply a request may name.

The walk itself is in ``test_app``, ``test_continuation`` and ``test_responses_socket``.
"""

from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from dragoman.addons import answer
from dragoman.addons.answer import Asked, Body, OwnReplies, Refused, answer_call, load_body, parse_body
from dragoman.addons.errors import InvalidRequest, TooLarge
from dragoman.addons.identity import Harness, hash_token
from dragoman.addons.messages import Earlier, Message, TextPart
from dragoman.addons.providers.base import Route
from dragoman.addons.providers.openai_responses import ON_SOCKET, OPENAI_RESPONSES
from dragoman.store.episodes import find_by_token
from dragoman.store.records import CallArrival
from tests.addons.test_app import Served, serve
from tests.scripted import scripted_engine

EARLIER = Earlier((Message("user", (TextPart("before"),)),), ())


@pytest.mark.parametrize("large", [False, True])
async def test_a_body_is_read_and_understood_alike_whatever_its_size(
    monkeypatch: pytest.MonkeyPatch, large: bool
) -> None:
    if large:
        monkeypatch.setattr(answer, "LARGE_BODY", 1)
    data = orjson.dumps({"model": "m", "input": "Hi"})
    body = await load_body(data)
    assert body == Body({"model": "m", "input": "Hi"}, len(data))
    assert (await parse_body(OPENAI_RESPONSES, body, Route("generate"))).model == "m"
    with pytest.raises(InvalidRequest):
        await load_body(b"[1]")


def asked(served: Served, value: dict[str, object], own: OwnReplies | None) -> Asked:
    async def read() -> Body:
        return Body(value, 10)

    with served.gateway.database.reading() as session:
        episode = find_by_token(session, hash_token(served.http.headers["x-api-key"].removeprefix("dgm_")))
    assert episode is not None
    route = ON_SOCKET if own is not None else Route("generate")
    return Asked(OPENAI_RESPONSES, route, "/v1/responses", episode, Harness(), read, own)


async def test_the_newest_reply_of_a_socket_needs_no_store(tmp_path: Path) -> None:
    value: dict[str, object] = {
        "model": "m",
        "input": [],
        "generate": False,
        "previous_response_id": f"resp_{'a' * 20}",
    }
    with scripted_engine([{"text": "x"}]) as engine:
        async with serve(tmp_path, engine.address) as served:
            own = OwnReplies()
            own.add(CallArrival("a" * 20, served.episode_id, "openai_responses", "/v1/responses", 1.0), EARLIER)
            warmed = await answer_call(served.gateway, asked(served, value, own))
            assert isinstance(warmed, answer.WarmedUp)
            assert warmed.request.messages == EARLIER.messages
            # in another episode it is not there; and no other request may name it, since it was never stored
            own.add(CallArrival("a" * 20, "e2", "openai_responses", "/v1/responses", 1.0), EARLIER)
            assert isinstance(await answer_call(served.gateway, asked(served, value, own)), Refused)
            refused = await answer_call(served.gateway, asked(served, value, OwnReplies()))
            assert isinstance(refused, Refused)
            assert refused.error.field == "previous_response_id"


async def test_what_cannot_be_read_is_refused_and_recorded(tmp_path: Path) -> None:
    async def read() -> Body:
        raise TooLarge("too much")

    with scripted_engine([{"text": "x"}]) as engine:
        async with serve(tmp_path, engine.address) as served:
            refused = await answer_call(served.gateway, replace(asked(served, {}, None), read=read))
            assert isinstance(refused, Refused)
            outcome = await served.last_outcome()
            assert (outcome.id, outcome.status, outcome.http_status) == (refused.call_id, "refused", 413)
