"""A process that speaks the engine's API and "samples" a script: for tests, and for trying a harness without a model.

It answers what the gateway asks of vLLM (``/health``, ``/v1/models``, ``/inference/v1/generate`` whole and streamed,
and what ``scripted_weights`` has), with token ids of a real tokenizer, so the gateway cannot know it from an engine.
For the test that drives it: ``POST /scripted/release`` lets one held reply go on, ``GET /scripted/requests`` tells what
was asked and what became of it, ``POST /scripted/script`` puts another script in place of the one it has, and forgets
what was asked.

``python -m dragoman.rollout.scripted_engine --model FOLDER --script FILE.json [--port P] [--port-file F]``
"""

import argparse
import asyncio
import json
import socket
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from transformers import AutoTokenizer

from dragoman.rollout.made_up import made_up
from dragoman.rollout.script import Script, Step, load_script, read_script
from dragoman.rollout.scripted_weights import ScriptedWeights, extend_spans
from dragoman.store.records import JsonObject


@dataclass(slots=True)
class Asked:
    """One generation request, as the test sees it."""

    request_id: str
    model: str | None
    prompt_ids: list[int]
    sampling_params: JsonObject
    stream: bool
    state: Literal["running", "done", "refused", "aborted"] = "running"
    """``aborted``: the client left before the end."""
    step: int | None = None
    """Which step of the script answered it, from 0; ``None``: none did."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What one request samples, decided before the first token goes out."""

    request_id: str
    step: Step
    ids: list[int]
    logprobs: list[float]
    finish_reason: str
    stop_reason: str | int | None
    spans: list[JsonObject]
    """Which version sampled what, as far as it has gone out; in vLLM's words."""


class ScriptedEngine:
    """Holds the script's progress; one per process."""

    def __init__(self, model: str, script: Script, *, max_model_len: int | None = None) -> None:
        """``max_model_len``: in tokens; ``None``: what the model's configuration says.

        Raises ``OSError`` when there is no such model, ``ValueError`` when its template cannot write a step's reply.
        """
        self.model = model
        self.script = script
        self.tokenizer: Any = AutoTokenizer.from_pretrained(model, local_files_only=True)
        config = json.loads((Path(model) / "config.json").read_text())
        self.max_model_len = max_model_len or int(config["max_position_embeddings"])
        self.asked: list[Asked] = []
        self.weights = ScriptedWeights()
        self._releases = asyncio.Semaphore(0)
        self._ids = [self._step_ids(step) for step in script.steps]

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/health", self.health),
                Route("/v1/models", self.models),
                Route("/inference/v1/generate", self.generate, methods=["POST"]),
                *self.weights.routes(),
                Route("/scripted/release", self.release, methods=["POST"]),
                Route("/scripted/requests", self.requests),
                Route("/scripted/script", self.replace_script, methods=["POST"]),
            ]
        )

    async def health(self, request: Request) -> Response:
        return Response()

    async def models(self, request: Request) -> Response:
        model = {"id": self.model, "object": "model", "created": 0, "owned_by": "scripted", "root": self.model}
        model |= {"parent": None, "max_model_len": self.max_model_len}
        loaded = [
            {**model, "id": name, "root": path, "parent": self.model} for name, path in self.weights.adapters.items()
        ]
        return JSONResponse({"object": "list", "data": [model, *loaded]})

    async def release(self, request: Request) -> Response:
        self._releases.release()
        return Response()

    async def requests(self, request: Request) -> Response:
        return JSONResponse([asdict(asked) for asked in self.asked])

    async def replace_script(self, request: Request) -> Response:
        try:
            script = read_script(await request.json())
            ids = [self._step_ids(step) for step in script.steps]
        except ValueError as error:
            return JSONResponse(_error(400, str(error)), 400)
        self.script, self._ids, self.asked = script, ids, []
        return Response()

    async def generate(self, request: Request) -> Response:
        body = await request.json()
        asked = Asked(
            request_id=body.get("request_id", f"unnamed-{len(self.asked)}"),
            model=body.get("model"),
            prompt_ids=body["token_ids"],
            sampling_params=body["sampling_params"],
            stream=bool(body.get("stream")),
        )
        self.asked.append(asked)
        if asked.model not in (None, self.model, *self.weights.adapters):
            return self._refuse(asked, 404, f"The model `{asked.model}` does not exist.")
        if (length := len(asked.prompt_ids)) >= self.max_model_len:
            # vLLM finds this out after it has begun to stream
            message = f"The prompt (length {length}) is longer than the maximum model length of {self.max_model_len}."
            if not asked.stream:
                return self._refuse(asked, 400, message)
            asked.state = "refused"
            return Response(_event(_error(400, message)) + _event("[DONE]"), media_type="text/event-stream")
        chosen = self.script.choose(self.tokenizer.decode(asked.prompt_ids))
        if chosen is None:
            tail = self.tokenizer.decode(asked.prompt_ids[-40:])
            return self._refuse(asked, 500, f"the script has no step for this prompt, which ends {tail!r}")
        asked.step = chosen
        step = self.script.steps[chosen]
        if step.fail is not None:
            return self._refuse(asked, step.fail, step.message)
        ids = self._ids[chosen]
        if step.obey and (schema := asked_schema(asked.sampling_params)) is not None:
            ids = self._step_ids(Step(raw=json.dumps(made_up(schema))))
        reply = self._reply(asked, step, ids, len(self.asked) - 1)
        if asked.stream:
            return StreamingResponse(self._stream(asked, reply), media_type="text/event-stream")
        choices = [choice async for choice in self._choices(reply)]
        asked.state = "done"
        return JSONResponse({"request_id": reply.request_id, "choices": [_whole(choices)]})

    def _refuse(self, asked: Asked, status: int, message: str) -> Response:
        asked.state = "refused"
        return JSONResponse(_error(status, message), status)

    async def _stream(self, asked: Asked, reply: Reply) -> AsyncIterator[bytes]:
        sent = 0
        try:
            async for choice in self._choices(reply):
                if reply.step.flaw == "garbage" and choice["finish_reason"]:
                    yield b"data: {not json\n\n"
                else:
                    yield _event({"request_id": reply.request_id, "choices": [choice]})
                sent += len(choice["token_ids"])
                if reply.step.cut_after is not None and sent >= reply.step.cut_after:
                    raise ConnectionError("the script says to break the connection here")  # uvicorn then closes it
                if reply.step.end_after is not None and sent >= reply.step.end_after:
                    break
                if reply.step.error_after is not None and sent >= reply.step.error_after:
                    yield _event(_error(500, reply.step.message))
                    break
            yield _event("[DONE]")
            asked.state = "done"
        finally:
            if asked.state == "running":
                asked.state = "aborted"

    async def _choices(self, reply: Reply) -> AsyncIterator[JsonObject]:
        """The reply as vLLM's ``choices[0]``, piece by piece."""
        step, length = reply.step, len(reply.ids)
        edges = [*range(0, length, max(1, step.chunk)), length] if length else [0, 0]
        if step.hold == "last" and length > 1:
            edges = sorted({*edges, length - 1})
        for start, end in pairwise(edges):
            if step.delay:
                await asyncio.sleep(step.delay)
            if (step.hold == "first" and start == 0) or (step.hold == "last" and end == length):
                await self._releases.acquire()
            await self.weights.going.wait()
            if end > start:
                extend_spans(reply.spans, self.weights.version, start, end)
            yield _choice(reply, start, end)

    def _reply(self, asked: Asked, step: Step, ids: list[int], number: int) -> Reply:
        """Cut the step's ids where the request's limits end them. ``number``: how many requests came before."""
        params = asked.sampling_params
        finish_reason, stop_reason = "length", None
        stop_ids = {*params.get("stop_token_ids", ()), self.tokenizer.eos_token_id}
        limit = min(params.get("max_tokens", 16), self.max_model_len - len(asked.prompt_ids))
        ids = ids[:limit]
        for at, token in enumerate(ids):
            if token in stop_ids:
                ids, finish_reason = ids[: at + 1], "stop"
                stop_reason = None if token == self.tokenizer.eos_token_id else token
                break
        for at in range(len(ids) if params.get("stop") else 0):
            text = self.tokenizer.decode(ids[: at + 1], skip_special_tokens=True)
            if found := [stop for stop in params["stop"] if stop in text]:
                ids, finish_reason, stop_reason = ids[: at + 1], "stop", found[0]
                break
        # multiples of 2⁻²⁰, so exact as float32, and different for every token of the first thousand requests
        logprobs = [-(at + 1) / 1024 - (number % 1024) / 2**20 for at in range(len(ids))]
        name = f"generate-tokens-{asked.request_id}"
        return Reply(name, step, ids, logprobs, finish_reason, stop_reason, [])

    def _step_ids(self, step: Step) -> list[int]:
        if step.ids is not None:
            return list(step.ids)
        if step.raw is not None:
            ids = list(self.tokenizer.encode(step.raw, add_special_tokens=False))
            return [*ids, self.tokenizer.eos_token_id] if step.end else ids
        ids = self._message_ids(step)
        return ids if step.end else ids[:-1]

    def _message_ids(self, step: Step) -> list[int]:
        """The assistant's message as the chat template writes it, behind the generation prompt and up to the end."""
        message: JsonObject = {"role": "assistant", "content": step.text}
        if step.reasoning:
            message["reasoning_content"] = step.reasoning
        if step.tool_calls:
            message["tool_calls"] = [{"type": "function", "function": dict(call)} for call in step.tool_calls]
        user = {"role": "user", "content": "x"}
        before = self._render([user], add_generation_prompt=True)
        after = self._render([user, message], add_generation_prompt=False)
        if after[: len(before)] != before or self.tokenizer.eos_token_id not in after[len(before) :]:
            raise ValueError(
                f"the chat template of {self.model!r} does not show a reply as it is sampled; use raw or ids"
            )
        return after[len(before) : after.index(self.tokenizer.eos_token_id, len(before)) + 1]

    def _render(self, messages: list[JsonObject], *, add_generation_prompt: bool) -> list[int]:
        return list(
            self.tokenizer.apply_chat_template(
                messages, add_generation_prompt=add_generation_prompt, tokenize=True, return_dict=False
            )
        )


def asked_schema(params: JsonObject) -> JsonObject | None:
    """The JSON schema that a request's structural tag holds the reply to; ``None``: there is none."""
    tag = (params.get("structured_outputs") or {}).get("structural_tag")
    waiting: list[Any] = [] if tag is None else [json.loads(tag)]
    while waiting:
        match waiting.pop():
            case {"type": "json_schema", "json_schema": dict(schema)}:
                return schema
            case dict(value):
                waiting += value.values()
            case list(value):
                waiting += value
    return None


def _choice(reply: Reply, start: int, end: int) -> JsonObject:
    """Tokens ``start`` to ``end`` of a reply, with what the script says is wrong with the last of them."""
    last = end == len(reply.ids)
    ids: list[Any] = reply.ids[start:end]
    content: list[JsonObject] = [
        {"token_id": token, "logprob": logprob, "rank": 1, "top_logprobs": []}
        for token, logprob in zip(ids, reply.logprobs[start:end], strict=True)
    ]
    versions: list[JsonObject] | None = reply.spans if last else None
    if last and content:
        match reply.step.flaw:
            case "nan":
                content[-1]["logprob"] = float("nan")
            case "none":
                content[-1]["logprob"] = None
            case "no_evidence":
                content[-1]["logprob"] = -9999.0
            case "missing_logprobs":
                content = []
            case "extra_logprob":
                content.append(content[-1])
            case "other_token":
                content[-1]["token_id"] += 1
            case "text_id":
                ids[-1] = str(ids[-1])
            case "no_versions":
                versions = None
            case "garbage" | None:
                pass
    return {
        "index": 0,
        "finish_reason": reply.finish_reason if last else None,
        "stop_reason": reply.stop_reason if last else None,
        "token_ids": ids,
        "weight_versions": versions,
        "logprobs": {"content": content},
    }


def _whole(choices: list[JsonObject]) -> JsonObject:
    """The pieces of a reply as one."""
    ids = [token for choice in choices for token in choice["token_ids"]]
    content = [entry for choice in choices for entry in choice["logprobs"]["content"]]
    return {**choices[-1], "token_ids": ids, "logprobs": {"content": content}}


def _error(status: int, message: str) -> JsonObject:
    return {"error": {"message": message, "type": "ScriptedError", "param": None, "code": status}}


def _event(data: JsonObject | str) -> bytes:
    return f"data: {data if isinstance(data, str) else json.dumps(data)}\n\n".encode()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m dragoman.rollout.scripted_engine", description=__doc__)
    parser.add_argument("--model", required=True, help="a model folder; only its tokenizer and config are read")
    parser.add_argument("--script", required=True, type=Path)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000, help="0: any free one")
    parser.add_argument("--port-file", type=Path, help="written with the port once it is listening")
    parser.add_argument("--max-model-len", type=int)
    options = parser.parse_args()
    try:
        engine = ScriptedEngine(options.model, load_script(options.script), max_model_len=options.max_model_len)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # else asyncio leaves Nagle on
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((options.host, options.port))
    listener.listen(128)
    if options.port_file is not None:
        # a listening socket takes connections already; written whole, since a test polls for it
        partial = options.port_file.with_suffix(".partial")
        partial.write_text(str(listener.getsockname()[1]))
        partial.rename(options.port_file)
    server = uvicorn.Server(uvicorn.Config(engine.app(), log_level="critical", timeout_graceful_shutdown=1))
    asyncio.run(server.serve(sockets=[listener]))


if __name__ == "__main__":
    main()
