"""Clients for campaigns: small harnesses that keep a conversation going and write down what they saw, event by event.

Rules of this module: a client knows nothing of the gateway's store. What it could have acted on is noted at the byte
where it could: the end of a tool call, a stop reason or a closing event of a stream; of a whole reply the first byte
that is no white space. After a failure it asks the same again, as harnesses do.
"""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import httpx

STEPS: list[dict[str, Any]] = [
    {"match": "Use the tool.", "tool_calls": [{"name": "read", "arguments": {"path": "a.txt"}}]},
    {"text": "Once there was a fox who wrote down all that was said at court, and lost none of it."},
]
"""What the scripted engine answers them; ``script`` adds how fast."""

Phase = Literal["nothing", "headers", "words", "acted", "done"]


def script(delay: float) -> list[dict[str, Any]]:
    """Steps for ``rollout.scripted_engine`` that repeat for ever, ``delay`` seconds for every two tokens."""
    return [{**step, "repeat": True, "chunk": 2, "delay": delay} for step in STEPS]


@dataclass(slots=True)
class Sent:
    """One request, as its client saw it."""

    client: str
    episode: str
    marker: str
    """Stands in the newest message, so that the stored call can be told by it. A request sent again has the same."""
    follows: str | None
    """Id of the call whose reply the request goes on from; ``None``: it begins a conversation."""
    status: int | None = None
    call_id: str | None = None
    phase: Phase = "nothing"
    said: str = ""
    """The reply, as far as it came: its words, and after a bar each tool call."""
    error: str | None = None

    @property
    def acted(self) -> bool:
        """Whether the client saw something that it could act on."""
        return self.phase in ("acted", "done")


@dataclass(slots=True)
class Talk:
    """One conversation in the Messages, Chat Completions or Responses dialect."""

    dialect: Literal["anthropic", "chat", "responses"]
    stream: bool
    tools: bool
    messages: list[dict[str, Any]] = field(default_factory=list)
    previous: str | None = None
    """``responses``: the id that the next request names."""
    newest: list[dict[str, Any]] = field(default_factory=list)
    """What the next request adds."""
    called: str | None = None
    """Id of the tool call in the last reply."""

    @property
    def path(self) -> str:
        return {"anthropic": "/v1/messages", "chat": "/v1/chat/completions", "responses": "/v1/responses"}[self.dialect]

    def body(self, marker: str) -> dict[str, Any]:
        self.newest = [self._next_message(marker)]
        system = "Use the tool." if self.tools else "Talk."
        schema = {"type": "object", "properties": {"path": {"type": "string"}}}
        body: dict[str, Any] = {"model": "m", "stream": self.stream}
        match self.dialect:
            case "anthropic":
                tools = [{"name": "read", "description": "Read.", "input_schema": schema}]
                body |= {"system": system, "max_tokens": 64, "messages": [*self.messages, *self.newest]}
            case "chat":
                tools = [{"type": "function", "function": {"name": "read", "parameters": schema}}]
                begin = {"role": "system", "content": system}
                body |= {"messages": [begin, *self.messages, *self.newest]}
            case "responses":
                tools = [{"type": "function", "name": "read", "parameters": schema}]
                body |= {"instructions": system, "input": self.newest}
                if self.previous:
                    body["previous_response_id"] = self.previous
        return {**body, "tools": tools} if self.tools else body

    def _next_message(self, marker: str) -> dict[str, Any]:
        if self.called is None:
            return {"role": "user", "content": f"Go on: {marker}"}
        match self.dialect:
            case "anthropic":
                result = {"type": "tool_result", "tool_use_id": self.called, "content": f"It says {marker}"}
                return {"role": "user", "content": [result]}
            case "chat":
                return {"role": "tool", "tool_call_id": self.called, "content": f"It says {marker}"}
            case "responses":
                return {"type": "function_call_output", "call_id": self.called, "output": f"It says {marker}"}

    def go_on(self, heard: "Heard") -> None:
        """The reply has come to its end: what was asked and answered is the past from now on."""
        self.messages += self.newest
        self.called = heard.tool_id
        arguments = heard.arguments or "{}"
        match self.dialect:
            case "anthropic":
                use = {"type": "tool_use", "id": heard.tool_id, "name": heard.tool, "input": json.loads(arguments)}
                content = [{"type": "text", "text": heard.words}] if heard.words else []
                self.messages.append({"role": "assistant", "content": [*content, *([use] if heard.tool_id else [])]})
            case "chat":
                call = {"id": heard.tool_id, "type": "function"}
                call["function"] = {"name": heard.tool, "arguments": arguments}  # type: ignore[assignment]
                calls = {"tool_calls": [call]} if heard.tool_id else {}
                self.messages.append({"role": "assistant", "content": heard.words or None, **calls})
            case "responses":
                self.previous = heard.response


@dataclass(slots=True)
class Heard:
    """A reply so far."""

    words: str = ""
    tool_id: str | None = None
    tool: str | None = None
    arguments: str = ""
    response: str | None = None
    acted: bool = False
    done: bool = False
    error: str | None = None

    @property
    def said(self) -> str:
        return self.words + (
            f"|{self.tool} {json.loads(self.arguments or '{}')}" if self.tool_id and self.acted else ""
        )

    def event(self, dialect: str, data: str) -> None:
        """Take one server-sent event's data."""
        if data == "[DONE]":
            self.acted = self.done = True
            return
        value = json.loads(data)
        if value.get("type") in ("error", "response.failed") or value.get("error"):
            self.error = data[:300]
            return
        {"anthropic": self._anthropic, "chat": self._chat, "responses": self._responses}[dialect](value)

    def _anthropic(self, value: dict[str, Any]) -> None:
        match value:
            case {"type": "content_block_start", "content_block": {"type": "tool_use", "id": call, "name": name}}:
                self.tool_id, self.tool = call, name
            case {"type": "content_block_delta", "delta": {"type": "text_delta", "text": text}}:
                self.words += text
            case {"type": "content_block_delta", "delta": {"type": "input_json_delta", "partial_json": text}}:
                self.arguments += text
            case {"type": "content_block_stop"} if self.tool_id:
                self.acted = True
            case {"type": "message_delta", "delta": {"stop_reason": str()}}:
                self.acted = True
            case {"type": "message_stop"}:
                self.acted = self.done = True

    def _chat(self, value: dict[str, Any]) -> None:
        for choice in value.get("choices", ()):
            delta = choice.get("delta", {})
            self.words += delta.get("content") or ""
            for call in delta.get("tool_calls") or ():
                self.tool_id = call.get("id") or self.tool_id
                self.tool = call["function"].get("name") or self.tool
                self.arguments += call["function"].get("arguments") or ""
            if choice.get("finish_reason"):
                self.acted = True

    def _responses(self, value: dict[str, Any]) -> None:
        match value:
            case {"type": "response.output_text.delta", "delta": text}:
                self.words += text
            case {"type": "response.output_item.done", "item": item}:
                self.acted = True
                if item["type"] == "function_call":
                    self.tool_id, self.tool, self.arguments = item["call_id"], item["name"], item["arguments"]
            case {"type": "response.completed", "response": response}:
                self.acted = self.done = True
                self.response = response["id"]

    def whole(self, dialect: str, value: dict[str, Any]) -> None:
        """Take a whole reply."""
        self.done = self.acted = True
        if value.get("error"):
            self.error = json.dumps(value["error"])[:300]
            return
        match dialect:
            case "anthropic":
                for block in value["content"]:
                    self.words += block.get("text", "")
                    if block["type"] == "tool_use":
                        self.tool_id, self.tool = block["id"], block["name"]
                        self.arguments = json.dumps(block["input"])
            case "chat":
                message = value["choices"][0]["message"]
                self.words = message.get("content") or ""
                for call in message.get("tool_calls") or ():
                    self.tool_id, self.tool = call["id"], call["function"]["name"]
                    self.arguments = call["function"]["arguments"]
            case "responses":
                self.response = value["id"]
                for item in value["output"]:
                    self._responses({"type": "response.output_item.done", "item": item})
                    for part in item.get("content", ()):
                        self.words += part.get("text", "")


KINDS: tuple[tuple[Literal["anthropic", "chat", "responses"], bool, bool], ...] = (
    ("anthropic", True, False),
    ("anthropic", True, True),
    ("anthropic", False, True),
    ("anthropic", False, False),
    ("chat", True, True),
    ("chat", False, False),
    ("chat", True, False),
    ("chat", False, True),
    ("responses", True, False),
    ("responses", True, True),
    ("responses", False, False),
    ("responses", False, True),
)
"""Dialect, streamed, with a tool."""


class Crowd:
    """Twelve clients, one of each kind, against one gateway that may be killed and started again."""

    def __init__(self, address: str, operator_key: str, *, turns: int, said: Callable[[Sent], None]) -> None:
        """``said`` is told of each request when it is over, in whatever way."""
        self.up = asyncio.Event()
        """Whether there is any point in asking."""
        self.flying: list[Sent] = []
        self._said = said
        self._turns = turns
        self._http = httpx.AsyncClient(base_url=address, trust_env=False, timeout=120)
        self._operator = {"authorization": f"Bearer {operator_key}"}
        self._tasks: list[asyncio.Task[None]] = []
        self._leaving = False
        self.unready = 0
        """How often no episode could be opened."""

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self._live(f"{number}", *kind)) for number, kind in enumerate(KINDS)]

    async def stop(self) -> None:
        """Let each client finish what it is at."""
        self._leaving = True
        self.up.set()
        await asyncio.gather(*self._tasks)
        await self._http.aclose()

    async def _open(self) -> tuple[str, str] | None:
        try:
            answer = await self._http.post("/dragoman/episodes", json={"task": "t"}, headers=self._operator)
            value = answer.json()
            if answer.status_code == 201:
                return value["id"], value["api_key"]
        except (httpx.TransportError, json.JSONDecodeError):
            pass
        self.unready += 1
        return None

    async def _live(self, client: str, dialect: Any, stream: bool, tools: bool) -> None:
        number = 0
        while not self._leaving:
            await self.up.wait()
            opened = await self._open()
            if opened is None:
                await asyncio.sleep(0.1)
                continue
            episode, key = opened
            talk, follows, failures = Talk(dialect, stream, tools), None, 0
            for turn in range(self._turns):
                marker = f"m{client}x{number}x{turn}"
                while not self._leaving:
                    await self.up.wait()
                    sent, heard = await self._ask(client, talk, episode, key, marker, follows)
                    if heard.done and heard.error is None:
                        talk.go_on(heard)
                        follows = sent.call_id
                        break
                    failures += 1
                    await asyncio.sleep(0.05 if sent.status in (None, 200) else 0.3)
            number += 1

    async def _ask(
        self, client: str, talk: Talk, episode: str, key: str, marker: str, follows: str | None
    ) -> tuple[Sent, Heard]:
        sent, heard = Sent(client, episode, marker, follows), Heard()
        headers = {"authorization": f"Bearer {key}", "x-session-id": f"s{client}"}
        self.flying.append(sent)
        try:
            async with self._http.stream("POST", talk.path, json=talk.body(marker), headers=headers) as response:
                sent.status, sent.phase = response.status_code, "headers"
                named = response.headers.get("request-id") or response.headers.get("x-request-id") or ""
                sent.call_id = named.removeprefix("req_") or None
                if response.status_code != 200:
                    sent.error = (await response.aread()).decode(errors="replace")[:300]
                elif talk.stream:
                    await self._listen(response, talk, sent, heard)
                else:
                    raw = b""
                    async for chunk in response.aiter_bytes():
                        raw += chunk
                        if raw.strip():
                            sent.phase = "acted"
                    heard.whole(talk.dialect, json.loads(raw))
        except (httpx.TransportError, json.JSONDecodeError) as error:
            sent.error = sent.error or repr(error)
        finally:
            self.flying.remove(sent)
        sent.said = heard.said
        sent.error = sent.error or heard.error
        if heard.done:
            sent.phase = "done"
        self._said(sent)
        return sent, heard

    async def _listen(self, response: httpx.Response, talk: Talk, sent: Sent, heard: Heard) -> None:
        async for line in response.aiter_lines():
            if line.startswith("data:"):
                heard.event(talk.dialect, line[5:].strip())
                sent.phase = "acted" if heard.acted else "words" if heard.words else sent.phase
