"""An engine inside the gateway's own process: answers at once, and checks what it is asked as vLLM would."""

import asyncio
import zlib
from collections.abc import AsyncGenerator, Sequence
from random import Random
from typing import Any

import httpx
import numpy as np
import orjson

from dragoman.addons.engine import BASE_VERSION, Engine, EngineInfo, SampledChunk, sampling_params
from dragoman.addons.messages import Sampling
from dragoman.addons.tokens import TokenCodec
from dragoman.store.records import JsonObject, PolicySpan, TokenIds

REPLIES = (
    *("Hello.", "<think>\nHm.\n</think>\n\nYes.", "", " \n", "é🦊 日本", "<think>", "</think>", '{"a": 1}'),
    *('<tool_call>\n{"name": "read", "arguments": {"path": "a"}}\n</tool_call>', "<tool_call>{bad</tool_call>"),
    *("One.<tool_call>\n{}\n</tool_call>", "<tool_call>", '<tool_call>\n{"name": "read", "argu', "</tool_call>a"),
)


class InstantEngine(Engine):
    """Answers at once, by the prompt alone; an ``AssertionError`` when it is asked what vLLM would refuse."""

    def __init__(self, model: str, codec: TokenCodec, max_model_len: int) -> None:
        super().__init__("http://127.0.0.1:9")
        self.codec = codec
        self._info = EngineInfo(model, model, max_model_len)
        self._replies = [codec._tokenizer.encode(text, add_special_tokens=False) for text in REPLIES]

    async def info(self) -> EngineInfo:
        return self._info

    async def control(self, method: str, path: str, body: JsonObject | None, *, patience: float) -> httpx.Response:
        return httpx.Response(404)  # its weights do not change

    async def generate(
        self,
        *,
        prompt_ids: TokenIds,
        sampling: Sampling,
        stop_ids: Sequence[int],
        request_id: str,
        model: str | None = None,
        structured: JsonObject | None = None,
    ) -> AsyncGenerator[SampledChunk]:
        params = sampling_params(sampling, stop_ids, structured)
        orjson.dumps(params)
        self._check(params, prompt_ids)
        random = Random(zlib.crc32(prompt_ids.tobytes()))
        ids = list(random.choice(self._replies)) + random.choice(([], [self.codec.stop_ids[0]]))
        if random.random() < 0.1:
            ids = [random.randrange(7000) for _ in range(20)]
        ids, finish_reason, stop_reason = self._cut(ids, params)
        half = random.randint(0, len(ids))
        await asyncio.sleep(0)
        if 0 < half < len(ids):
            yield SampledChunk(tuple(ids[:half]), (-0.5,) * half, None, None, None)
            await asyncio.sleep(0)
        else:
            half = 0
        spans = (PolicySpan(BASE_VERSION, 0, len(ids)),) if ids else ()
        rest = tuple(ids[half:])
        yield SampledChunk(rest, (-0.5,) * len(rest), finish_reason, stop_reason, spans)

    def _cut(self, ids: list[int], params: JsonObject) -> tuple[list[int], Any, str | int | None]:
        ids = ids[: params["max_tokens"]]
        for at, token in enumerate(ids):
            if token in params["stop_token_ids"]:
                return ids[: at + 1], "stop", token
            for stop in params.get("stop", ()):
                if stop in self.codec.decode(ids[: at + 1]):
                    return ids[: at + 1], "stop", stop
        return ids, "length", None

    def _check(self, params: JsonObject, prompt_ids: TokenIds) -> None:
        assert prompt_ids.dtype == np.int32
        assert len(prompt_ids) > 0
        assert prompt_ids.min() >= 0
        assert params["max_tokens"] >= 1
        assert len(prompt_ids) + params["max_tokens"] <= self._info.max_model_len
        assert 0 <= params["temperature"] <= 2
        assert 0 < params["top_p"] <= 1
        assert params.get("top_k", 0) >= -1
        assert 0 <= params.get("min_p", 0) <= 1
        assert all(-2 <= params.get(name, 0) <= 2 for name in ("presence_penalty", "frequency_penalty"))
        assert params.get("repetition_penalty", 1) > 0
        assert abs(params.get("seed", 0)) < 2**63
        assert all(isinstance(stop, str) and stop for stop in params.get("stop", ()))
