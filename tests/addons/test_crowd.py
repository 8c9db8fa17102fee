"""Two hundred episodes at once on a real mitmdump: every call lands in its own, and what is forged lands in none."""

import asyncio
import json
import os
import random
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import text

from dragoman.addons.providers import PROVIDERS
from dragoman.gateway_client import OpenedEpisode
from dragoman.store.calls import read_calls
from dragoman.store.database import Database
from dragoman.store.records import CallInfo
from tests.gateway import RunningGateway, running_gateway
from tests.scripted import Scripted, scripted_engine

EPISODES = 200
CALLS = 3
"""Per episode."""
CASES = Path(__file__).parent / "providers" / "cases"
WIRE = os.environ.get("DRAGOMAN_WIRE")
URLS = {
    "anthropic": ("https://api.anthropic.com", "/v1/messages"),
    "openai_chat": ("https://api.openai.com", "/v1/chat/completions"),
    "openai_responses": ("https://api.openai.com", "/v1/responses"),
    "google": ("https://generativelanguage.googleapis.com", "/v1beta/models/m:generateContent"),
}


@dataclass(frozen=True)
class Shape:
    """A request of some harness; ``body`` has ``MARK`` where the prompt stands."""

    dialect: str
    body: str


def golden() -> list[Shape]:
    shapes = []
    for provider in PROVIDERS:
        for case in ("text", "tool_call", "tool_result", "system"):
            body = json.loads((CASES / provider.name / case / "request.json").read_text())
            shapes.append(Shape(provider.name, json.dumps(marked(provider.name, body))))
    return shapes


def recorded() -> list[Shape]:
    """Requests of real harnesses, where the folder with them is there."""
    shapes = []
    for path in sorted(Path(WIRE).glob("*.json")) if WIRE else []:
        sample = json.loads(path.read_text())
        dialect = next(
            (name for name, (_, end) in URLS.items() if sample.get("path", "").partition("?")[0] == end), None
        )
        if dialect is not None and isinstance(sample.get("body"), dict):
            shapes.append(Shape(dialect, json.dumps(marked(dialect, sample["body"]))))
    return shapes[:: max(1, len(shapes) // 12)]


def marked(dialect: str, body: dict[str, Any]) -> dict[str, Any]:
    """The same request, not streamed, with ``MARK`` as one more thing that the user says."""
    body = body | ({} if dialect == "google" else {"stream": False})
    match dialect:
        case "google":
            body["contents"] = [*body["contents"], {"role": "user", "parts": [{"text": "MARK"}]}]
        case "openai_responses":
            said = body["input"] if isinstance(body["input"], list) else [{"role": "user", "content": body["input"]}]
            body["input"] = [*said, {"role": "user", "content": "MARK"}]
        case _:
            body["messages"] = [*body["messages"], {"role": "user", "content": "MARK"}]
    return body


@pytest.fixture(scope="module")
def engine() -> Iterator[Scripted]:
    with scripted_engine([{"text": "Hello there.", "repeat": True}]) as running:
        yield running


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory, engine: Scripted) -> Iterator[RunningGateway]:
    with running_gateway(tmp_path_factory.mktemp("crowd") / "home", engine.address) as running:
        yield running


class Crowd:
    def __init__(self, gateway: RunningGateway, shapes: list[Shape]) -> None:
        self.gateway = gateway
        self.shapes = shapes
        self.chance = random.Random(6)
        self.client = httpx.AsyncClient(trust_env=False, timeout=120, limits=httpx.Limits(max_connections=64))
        self.trust = ssl.create_default_context(cafile=str(gateway.ca))

    async def honest(self, episode: OpenedEpisode) -> list[str]:
        """One harness: its calls by a way of its own, one after the other. The text of each reply."""
        way = self.chance.choice(("path", "key", "proxy"))
        shape = self.chance.choice(self.shapes)
        host, path = URLS[shape.dialect]
        replies = []
        for turn in range(CALLS):
            body = shape.body.replace("MARK", f"{episode.id} turn {turn}").encode()
            headers = {"content-type": "application/json", "x-goog-api-key": "AIza-own"}
            if way == "proxy":
                proxy = self.gateway.proxy(episode.token)
                async with httpx.AsyncClient(proxy=proxy, verify=self.trust, trust_env=False, timeout=120) as client:
                    reply = await client.post(host + path, content=body, headers=headers)
            elif way == "path":
                url = f"{self.gateway.address}/e/{episode.token}{path}"
                reply = await self.client.post(url, content=body, headers=headers)
            else:
                headers = {"content-type": "application/json", "authorization": f"Bearer {episode.api_key}"}
                reply = await self.client.post(self.gateway.address + path, content=body, headers=headers)
            assert reply.status_code == 200, reply.text
            replies.append(reply.text)
        return replies

    async def forged(self, victim: OpenedEpisode, other: OpenedEpisode, spent: OpenedEpisode) -> int:
        """One attempt to get something into ``victim``; its status."""
        shape = self.chance.choice(self.shapes)
        _, path = URLS[shape.dialect]
        at = self.gateway.address
        own, theirs = f"Bearer {other.api_key}", f"Bearer {victim.api_key}"
        flipped = victim.token[:-1] + ("0" if victim.token[-1] != "0" else "1")
        attempts: list[tuple[str, dict[str, str]]] = [
            (at + path, {}),  # missing
            (at + path, {"authorization": f"Bearer dgm_{flipped}"}),  # forged
            (at + path, {"authorization": f"Bearer {victim.id}"}),  # the id is no token
            (f"{at}/e/{victim.token}{path}", {"authorization": own}),  # swapped
            (f"{at}/e/{other.token}{path}", {"authorization": theirs}),
            (f"{at}{path}?key={victim.api_key}", {"authorization": own}),  # disagreeing
            (at + path, {"authorization": f"Bearer {spent.api_key}"}),  # expired
            (at + path, {"x-dragoman-ticket": "0" * 32}),
            (f"http://127.0.0.1:{self.gateway.app_port}{path}", {"authorization": theirs}),  # past the proxy
            (f"http://127.0.0.1:{self.gateway.app_port}/e/{victim.token}{path}", {}),
        ]
        url, headers = self.chance.choice(attempts)
        body = shape.body.replace("MARK", f"EVIL {victim.id}").encode()
        return (await self.client.post(url, content=body, headers=headers)).status_code


def stored(gateway: RunningGateway) -> dict[str, list[CallInfo]]:
    database = Database.open(gateway.store_url)
    try:
        with database.reading() as session:
            ids = [row[0] for row in session.execute(text("SELECT id FROM episodes"))]
            return {one: read_calls(session, one) for one in ids}
    finally:
        database.close()


async def test_every_call_lands_in_its_own_episode(gateway: RunningGateway) -> None:
    spent = gateway.open(ttl_seconds=1)
    episodes = [gateway.open() for _ in range(EPISODES)]
    crowd = Crowd(gateway, golden() + recorded())
    forged = [
        crowd.forged(episodes[n], episodes[(n + 1) % EPISODES], spent)
        for n in crowd.chance.sample(range(EPISODES), 100)
    ]
    async with crowd.client:
        replies, refusals = await asyncio.gather(
            asyncio.gather(*(crowd.honest(episode) for episode in episodes)), asyncio.gather(*forged)
        )
    assert set(refusals) == {401}
    calls = stored(gateway)
    assert calls.pop(spent.id) == []
    for episode, said in zip(episodes, replies, strict=True):
        mine = calls.pop(episode.id)
        assert len(mine) == CALLS
        for turn, (call, reply) in enumerate(zip(mine, said, strict=True)):
            assert call.outcome is not None
            assert call.outcome.status == "answered"
            assert call.arrival.id in reply, "the reply that came is the one that was stored"
            prompts = b"".join(blob.data for blob in call.outcome.messages)
            assert f"{episode.id} turn {turn}".encode() in prompts
            assert b"EVIL" not in prompts
            assert call.outcome.parent_id in {None, *(one.arrival.id for one in mine)}
    assert calls == {}
