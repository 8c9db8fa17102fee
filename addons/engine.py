"""The one client of the server that samples (vLLM with ``--enable-scale-out``): token ids in, token ids out.

Rules of this module: what arrives is checked before anything else sees it. One finite logprob per sampled id, of that
very id, and a finish reason at the end; anything else is ``EngineFailed`` naming what was wrong, since a wrong number
would be trained on. No request is repeated here.
"""

import math
import re
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import httpx
import orjson

from dragoman.addons.errors import (
    AdapterMissing,
    ContextTooLong,
    EngineFailed,
    EngineTimeout,
    InvalidRequest,
    Overloaded,
)
from dragoman.addons.messages import Sampling
from dragoman.addons.sse import SseSplitter
from dragoman.store.records import JsonObject, PolicySpan, TokenIds

BASE_VERSION = "base"
"""Policy version of the weights that the engine was started with."""
UNSET_LABEL = "default"
"""vLLM's own name for them, until a version is set."""
_NO_EVIDENCE = -9999.0
"""What vLLM reports as the logprob of a token that it has none for, and for NaN."""
_TOO_LONG = re.compile(r"\(length (\d+)\).* longer than the maximum model length of (\d+)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class EngineInfo:
    model: str
    """The name that requests use."""
    root: str
    """The folder or name that the weights came from."""
    max_model_len: int
    """Prompt and reply together, in tokens."""
    adapters: tuple[tuple[str, str], ...] = ()
    """Name and folder of each LoRA adapter that is loaded."""


@dataclass(frozen=True, slots=True)
class SampledChunk:
    """Some tokens, in the order in which they were sampled."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """One per id, finite, of the distribution that was sampled from."""
    finish_reason: Literal["stop", "length", "abort"] | None
    """Set on the last chunk, and only there."""
    stop_reason: str | int | None
    """The stop string or stop id that ended the reply; ``None``: the end-of-sequence token, or no stop."""
    policy_spans: tuple[PolicySpan, ...] | None
    """Over the whole completion; ``None`` on all chunks but the last."""

    def __post_init__(self) -> None:
        if len(self.token_ids) != len(self.logprobs):
            raise ValueError(f"{len(self.token_ids)} ids but {len(self.logprobs)} logprobs")


class Engine:
    """One engine at ``base_url``. ``close`` it when done."""

    def __init__(self, base_url: str, *, connect_timeout: float = 5.0, read_timeout: float | None = 600.0) -> None:
        """``read_timeout``: the longest silence in seconds, long prompts and weight updates included; ``None``: any."""
        self.base_url = base_url.rstrip("/")
        timeout = httpx.Timeout(read_timeout, connect=connect_timeout)
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
        self._http = httpx.AsyncClient(base_url=self.base_url, timeout=timeout, limits=limits, trust_env=False)
        self._base_model: str | None = None

    async def close(self) -> None:
        await self._http.aclose()

    async def health(self) -> bool:
        """Whether the engine answers and says that it works."""
        try:
            return (await self._http.get("/health", timeout=5.0)).status_code == 200
        except httpx.HTTPError:
            return False

    async def info(self) -> EngineInfo:
        """Ask what is served. Raises ``Overloaded`` when nothing answers, ``EngineFailed`` when it is not an engine."""
        try:
            response = await self._http.get("/v1/models", timeout=30.0)
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error
        if response.status_code != 200:
            raise engine_error(response.status_code, _error_message(response.content))
        try:
            models = orjson.loads(response.content)["data"]
            base = next(model for model in models if model.get("parent") is None)
            adapters = tuple((model["id"], model["root"]) for model in models if model.get("parent") is not None)
            info = EngineInfo(base["id"], base.get("root") or base["id"], int(base["max_model_len"]), adapters)
        except (orjson.JSONDecodeError, KeyError, TypeError, StopIteration) as error:
            raise EngineFailed(f"{self.base_url}/v1/models is no engine's list of models: {error!r}") from error
        self._base_model = info.model
        return info

    async def control(self, method: str, path: str, body: JsonObject | None, *, patience: float) -> httpx.Response:
        """Ask a route beside sampling, whatever it answers; ``patience`` in seconds.

        Raises ``Overloaded`` when nothing answers.
        """
        try:
            return await self._http.request(method, path, json=body, timeout=httpx.Timeout(patience, connect=5.0))
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error

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
        """Sample one reply. Closing the iterator closes the connection, which stops the engine's request.

        ``model``: an adapter's name; its name is then the policy version, since the engine's labels ignore adapters.
        ``None``: the base model. ``structured``: the engine's ``structured_outputs`` (``{"json": schema}`` and others).

        Raises ``ContextTooLong`` or ``InvalidRequest`` when the engine refuses the request, ``Overloaded`` when it
        cannot take it now, ``AdapterMissing`` when it has no such ``model``, ``EngineTimeout`` after a silence of
        ``read_timeout``, ``EngineFailed`` for all else.
        """
        version = None
        if model is not None:
            base = self._base_model or (await self.info()).model
            version = None if model == base else model
        body: JsonObject = {
            "token_ids": prompt_ids.tolist(),
            "sampling_params": sampling_params(sampling, stop_ids, structured),
            "request_id": request_id,
            "stream": True,
        }
        if model is not None:
            body["model"] = model
        reader = ChunkReader(version)
        try:
            async with self._http.stream(
                "POST",
                "/inference/v1/generate",
                content=orjson.dumps(body),
                headers={"content-type": "application/json"},
            ) as response:
                if response.status_code != 200:
                    raise self._refused(response.status_code, await response.aread(), model)
                splitter = SseSplitter()
                async for received in response.aiter_bytes():
                    for event in splitter.feed(received):
                        if event.data != b"[DONE]" and (chunk := reader.read(event.data)) is not None:
                            yield chunk
        except httpx.ReadTimeout as error:
            raise EngineTimeout(f"the engine at {self.base_url} was silent for too long") from error
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise self._unreachable(error) from error
        except httpx.HTTPError as error:
            raise EngineFailed(f"the connection to the engine at {self.base_url} broke: {error!r}") from error
        if not reader.finished:
            raise EngineFailed(f"the engine ended the reply without a finish reason, after {reader.length} tokens")

    def _unreachable(self, error: httpx.HTTPError) -> Overloaded:
        return Overloaded(f"the engine at {self.base_url} cannot be reached: {error or type(error).__name__}")

    def _refused(self, status: int, body: bytes, model: str | None) -> Exception:
        """The error for a reply that is no 200."""
        message = _error_message(body)
        if status == 404 and model is not None and model in message:
            return AdapterMissing(f"the engine has no model {model!r}: {message}")
        if status in (403, 404):
            return EngineFailed(
                f"the engine at {self.base_url} answers {status} to token requests; start vLLM with --enable-scale-out"
            )
        return engine_error(status, message)


def sampling_params(sampling: Sampling, stop_ids: Sequence[int], structured: JsonObject | None) -> JsonObject:
    """vLLM's sampling parameters. What is ``None`` is left out: started as it must be, vLLM's defaults are neutral."""
    params: JsonObject = {
        name: value
        for name in (
            *("temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty"),
            *("repetition_penalty", "seed", "max_tokens"),
        )
        if (value := getattr(sampling, name)) is not None
    }
    params["stop_token_ids"] = list(stop_ids)
    params["logprobs"] = 0  # of the sampled token alone
    params["detokenize"] = bool(sampling.stop)  # text is only needed to look for stop strings
    if sampling.stop:
        params["stop"] = list(sampling.stop)
    if structured is not None:
        params["structured_outputs"] = structured
    return params


def engine_error(status: int, message: str) -> Exception:
    """The error for what the engine said with ``status``, before or within a stream."""
    if status == 400:
        if found := _TOO_LONG.search(message):
            return ContextTooLong(int(found[1]), int(found[2]))
        return InvalidRequest(f"the engine refused the request: {message}")
    if status in (429, 503):
        return Overloaded(f"the engine cannot take the call now: {message}")
    return EngineFailed(f"the engine answered {status}: {message}")


class ChunkReader:
    """Reads one reply's events, and holds what must be right across them."""

    def __init__(self, version: str | None) -> None:
        """``version``: the policy version of all tokens; ``None``: the engine's labels say it."""
        self._version = version
        self.length = 0
        """Tokens read so far."""
        self.finished = False

    def read(self, data: bytes) -> SampledChunk | None:
        """One event; ``None``: it says nothing of the reply. Raises ``EngineFailed`` naming what is wrong with it."""
        try:
            event = orjson.loads(data)
            if "error" in event:
                raise engine_error(int(event["error"].get("code") or 500), str(event["error"].get("message")))
            if not event["choices"]:
                return None
            (choice,) = event["choices"]
            chunk = self._chunk(choice)
        except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise EngineFailed(f"the engine sent an event that cannot be read ({error!r}): {data[:300]!r}") from error
        self.length += len(chunk.token_ids)
        self.finished = chunk.finish_reason is not None
        return chunk

    def _chunk(self, choice: dict[str, Any]) -> SampledChunk:
        if self.finished:
            raise EngineFailed("the engine sent more after the finish reason")
        token_ids = tuple(choice["token_ids"] or ())
        entries = (choice.get("logprobs") or {}).get("content") or []
        if len(entries) != len(token_ids):
            raise EngineFailed(f"the engine sent {len(token_ids)} token ids with {len(entries)} logprobs")
        for token, entry in zip(token_ids, entries, strict=True):
            _check_token(token, entry)
        finish_reason = choice["finish_reason"]
        if finish_reason not in (None, "stop", "length", "abort"):
            raise EngineFailed(f"the engine ended the reply with an unknown finish reason: {finish_reason!r}")
        spans = None
        if finish_reason is not None:
            spans = self._spans(choice.get("weight_versions"), self.length + len(token_ids))
        logprobs = tuple(float(entry["logprob"]) for entry in entries)
        return SampledChunk(token_ids, logprobs, finish_reason, choice.get("stop_reason"), spans)

    def _spans(self, labels: list[dict[str, Any]] | None, length: int) -> tuple[PolicySpan, ...]:
        """The policy version of every token of the completion, without a gap."""
        if length == 0:
            return ()
        if self._version is not None:
            return (PolicySpan(self._version, 0, length),)
        if not labels:
            raise EngineFailed("the engine did not say which weights sampled the reply (weight_versions is missing)")
        spans = tuple(
            PolicySpan(
                BASE_VERSION if label["version"] == UNSET_LABEL else label["version"], label["start"], label["end"]
            )
            for label in labels
        )
        bounds = [0, *(span.end for span in spans)]
        if [span.start for span in spans] != bounds[:-1] or bounds[-1] != length:
            raise EngineFailed(
                f"the engine's weight versions do not cover the {length} tokens of the reply: {labels!r}"
            )
        return spans


def _check_token(token: object, entry: dict[str, Any]) -> None:
    if type(token) is not int or token < 0:
        raise EngineFailed(f"the engine sent {token!r} as a token id")
    if entry["token_id"] != token:
        raise EngineFailed(f"the engine sent the logprob of token {entry['token_id']!r} with token {token}")
    logprob = entry["logprob"]
    if type(logprob) not in (int, float) or not math.isfinite(logprob) or logprob == _NO_EVIDENCE or logprob > 1e-3:
        raise EngineFailed(f"the engine sent {logprob!r} as the logprob of token {token}")


def _error_message(body: bytes) -> str:
    """What an error body of the engine says; the beginning of the body when it has another shape."""
    try:
        return str(orjson.loads(body)["error"]["message"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return body[:300].decode(errors="replace")
