import json
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from dragoman.addons.engine import ChunkReader, Engine, EngineInfo, SampledChunk, sampling_params
from dragoman.addons.errors import (
    ContextTooLong,
    DragomanError,
    EngineFailed,
    EngineTimeout,
    InvalidRequest,
    Overloaded,
)
from dragoman.addons.messages import Message, Sampling, TextPart
from dragoman.addons.tokens import TokenCodec
from dragoman.cli.processes import free_port
from dragoman.store.records import PolicySpan
from tests.models import real_engine, smollm2_folder, tiny_model_folder
from tests.scripted import scripted_engine

PROMPT = np.array([5, 6, 7], dtype=np.int32)
SAMPLING = Sampling(temperature=1.0, max_tokens=50)


@asynccontextmanager
async def opened(address: str, **timeouts: float) -> AsyncIterator[Engine]:
    engine = Engine(address, **timeouts)
    try:
        yield engine
    finally:
        await engine.close()


async def sample(engine: Engine, sampling: Sampling = SAMPLING, **arguments: Any) -> list[SampledChunk]:
    arguments = {"prompt_ids": PROMPT, "stop_ids": (2,), "request_id": "call1", **arguments}
    return [chunk async for chunk in engine.generate(sampling=sampling, **arguments)]


async def test_a_reply_is_read_whole() -> None:
    with scripted_engine([{"text": "one two three", "chunk": 2}]) as scripted:
        async with opened(scripted.address) as engine:
            chunks = await sample(engine, Sampling(temperature=0.7, max_tokens=50, stop=("x",)))
        (asked,) = scripted.requests()
    ids = [token for chunk in chunks for token in chunk.token_ids]
    assert [len(chunk.token_ids) for chunk in chunks] == [2, 2]
    assert [value for chunk in chunks for value in chunk.logprobs] == [-(at + 1) / 1024 for at in range(4)]
    assert [chunk.finish_reason for chunk in chunks] == [None, "stop"]
    assert [chunk.policy_spans for chunk in chunks] == [None, (PolicySpan("base", 0, len(ids)),)]
    assert (asked["request_id"], asked["prompt_ids"], asked["stream"]) == ("call1", [5, 6, 7], True)
    assert asked["sampling_params"] == {
        "temperature": 0.7,
        "max_tokens": 50,
        "stop": ["x"],
        "stop_token_ids": [2],
        "logprobs": 0,
        "detokenize": True,
    }


def test_sampling_parameters_that_nobody_set_are_not_sent() -> None:
    assert sampling_params(Sampling(), (1, 2), {"json": {}}) == {
        "stop_token_ids": [1, 2],
        "logprobs": 0,
        "detokenize": False,
        "structured_outputs": {"json": {}},
    }
    everything = Sampling(0.5, 0.9, 40, 0.1, 0.2, 0.3, 1.1, 7, 20)
    assert sampling_params(everything, (), None) == {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 40,
        "min_p": 0.1,
        "presence_penalty": 0.2,
        "frequency_penalty": 0.3,
        "repetition_penalty": 1.1,
        "seed": 7,
        "max_tokens": 20,
        "stop_token_ids": [],
        "logprobs": 0,
        "detokenize": False,
    }


@pytest.mark.parametrize(
    ("step", "error", "named"),
    [
        ({"text": "hi", "flaw": "nan"}, EngineFailed, "cannot be read"),
        ({"text": "hi", "flaw": "none"}, EngineFailed, "None as the logprob of token 2"),
        ({"text": "hi", "flaw": "no_evidence"}, EngineFailed, "-9999.0 as the logprob of token 2"),
        ({"text": "hi", "flaw": "missing_logprobs"}, EngineFailed, "1 token ids with 0 logprobs"),
        ({"text": "hi", "flaw": "extra_logprob"}, EngineFailed, "1 token ids with 2 logprobs"),
        ({"text": "hi", "flaw": "other_token"}, EngineFailed, "logprob of token 3 with token 2"),
        ({"text": "hi", "flaw": "text_id"}, EngineFailed, "'2' as a token id"),
        ({"text": "hi", "flaw": "garbage"}, EngineFailed, "cannot be read"),
        ({"text": "hi", "flaw": "no_versions"}, EngineFailed, "weight_versions"),
        ({"text": "one two three", "end_after": 2}, EngineFailed, "without a finish reason, after 2 tokens"),
        ({"text": "one two three", "cut_after": 2}, EngineFailed, "broke"),
        ({"text": "one two three", "error_after": 2, "message": "kernel"}, EngineFailed, "500: kernel"),
        ({"fail": 400, "message": "bad id"}, InvalidRequest, "bad id"),
        ({"fail": 403}, EngineFailed, "--enable-scale-out"),
        ({"fail": 404}, EngineFailed, "--enable-scale-out"),
        ({"fail": 429}, Overloaded, "scripted failure"),
        ({"fail": 503}, Overloaded, "scripted failure"),
        ({"fail": 500, "message": "dead"}, EngineFailed, "500: dead"),
    ],
    ids=lambda value: json.dumps(value) if isinstance(value, dict) else "",
)
async def test_what_is_wrong_is_named(step: dict[str, Any], error: type[DragomanError], named: str) -> None:
    with scripted_engine([step]) as scripted:
        async with opened(scripted.address) as engine:
            with pytest.raises(error, match=named):
                await sample(engine)


@pytest.mark.parametrize(
    ("versions", "fits"),
    [
        ([("default", 0, 2), ("v2", 2, 3)], True),
        ([("v1", 0, 2)], False),
        ([("v1", 0, 1), ("v2", 2, 3)], False),
        ([("v1", 0, 4)], False),
    ],
)
def test_weight_versions_must_cover_the_reply(versions: list[tuple[str, int, int]], fits: bool) -> None:
    event = {
        "choices": [
            {
                "token_ids": [5, 6, 7],
                "finish_reason": "stop",
                "logprobs": {"content": [{"token_id": token, "logprob": -1.0} for token in (5, 6, 7)]},
                "weight_versions": [{"version": name, "start": start, "end": end} for name, start, end in versions],
            }
        ]
    }
    if fits:
        chunk = ChunkReader(None).read(json.dumps(event).encode())
        assert chunk is not None
        assert chunk.policy_spans == (PolicySpan("base", 0, 2), PolicySpan("v2", 2, 3))
    else:
        with pytest.raises(EngineFailed, match="do not cover the 3 tokens"):
            ChunkReader(None).read(json.dumps(event).encode())


def test_nothing_may_follow_the_finish_reason() -> None:
    event = b'{"choices": [{"token_ids": [], "finish_reason": "abort"}]}'
    reader = ChunkReader(None)
    assert reader.read(event) == SampledChunk((), (), "abort", None, ())
    assert reader.read(b'{"choices": [], "usage": {}}') is None
    assert reader.finished
    with pytest.raises(EngineFailed, match="after the finish reason"):
        reader.read(event)


def test_a_finish_reason_must_be_known() -> None:
    with pytest.raises(EngineFailed, match="'repetition'"):
        ChunkReader(None).read(b'{"choices": [{"token_ids": [], "finish_reason": "repetition"}]}')


async def test_a_prompt_that_is_too_long_says_by_how_much() -> None:
    with scripted_engine([{"text": "x"}], max_model_len=3) as scripted:
        async with opened(scripted.address) as engine:
            with pytest.raises(ContextTooLong) as raised:
                await sample(engine)
    assert (raised.value.prompt_tokens, raised.value.limit) == (3, 3)


async def test_no_engine() -> None:
    address = f"http://127.0.0.1:{free_port()}"
    async with opened(address) as engine:
        assert not await engine.health()
        with pytest.raises(Overloaded, match=f"{address} cannot be reached"):
            await engine.info()
        with pytest.raises(Overloaded, match=f"{address} cannot be reached"):
            await sample(engine)


async def test_a_silent_engine() -> None:
    with scripted_engine([{"text": "one two", "hold": "last"}]) as scripted:
        async with opened(scripted.address, read_timeout=0.2) as engine:
            with pytest.raises(EngineTimeout):
                await sample(engine)


async def test_closing_the_iterator_stops_the_request() -> None:
    with scripted_engine([{"text": "one two", "hold": "last"}]) as scripted:
        async with opened(scripted.address) as engine:
            chunks = engine.generate(prompt_ids=PROMPT, sampling=SAMPLING, stop_ids=(2,), request_id="c")
            async with aclosing(chunks):
                await anext(chunks)
            scripted.wait_for_state(0, "aborted")


async def test_what_is_served() -> None:
    with scripted_engine([{"text": "x"}], max_model_len=100) as scripted:
        async with opened(scripted.address + "/") as engine:
            folder = str(tiny_model_folder())
            assert await engine.info() == EngineInfo(folder, folder, 100, ())
            assert await engine.health()


MODELS = [
    {"id": "ad1", "parent": "base-model", "root": "/a", "max_model_len": None},
    {"id": "base-model", "parent": None, "root": "/m", "max_model_len": 4096},
]


async def test_an_adapters_name_is_the_policy_version() -> None:
    async with stubbed({"data": MODELS}) as engine:
        assert await engine.info() == EngineInfo("base-model", "/m", 4096, (("ad1", "/a"),))
        assert (await sample(engine, model="ad1"))[-1].policy_spans == (PolicySpan("ad1", 0, 1),)
        assert (await sample(engine, model="base-model"))[-1].policy_spans == (PolicySpan("v7", 0, 1),)
    async with stubbed({"data": MODELS}) as engine:  # without having asked what is served
        assert (await sample(engine, model="ad1"))[-1].policy_spans == (PolicySpan("ad1", 0, 1),)
        with pytest.raises(EngineFailed, match="no model 'gone'"):
            await sample(engine, model="gone")


@pytest.mark.parametrize("models", [{"data": []}, {"detail": "Not Found"}, [], {"data": MODELS[:1]}])
async def test_something_that_is_no_engine(models: Any) -> None:
    async with stubbed(models) as engine:
        with pytest.raises(EngineFailed, match="no engine's list of models"):
            await engine.info()


@asynccontextmanager
async def stubbed(models: Any) -> AsyncIterator[Engine]:
    """A client whose engine is a function here: it lists ``models`` and samples one token of weights ``v7``."""

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/models":
            return httpx.Response(200, json=models)
        if json.loads(request.content).get("model") == "gone":
            return httpx.Response(404, json={"error": {"message": "The model `gone` does not exist.", "code": 404}})
        choice = {
            "token_ids": [5],
            "finish_reason": "length",
            "logprobs": {"content": [{"token_id": 5, "logprob": -1.0}]},
            "weight_versions": [{"version": "v7", "start": 0, "end": 1}],
        }
        return httpx.Response(200, text=f"data: {json.dumps({'choices': [choice]})}\n\ndata: [DONE]\n\n")

    engine = Engine("http://engine")
    await engine._http.aclose()
    engine._http = httpx.AsyncClient(base_url="http://engine", transport=httpx.MockTransport(answer))
    async with engine._http:
        yield engine


@pytest.fixture(scope="module", params=["tiny", "smollm2"])
def real(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    model = tiny_model_folder() if request.param == "tiny" else smollm2_folder()
    with real_engine(model, tmp_path_factory.mktemp("engine"), max_model_len=4096) as address:
        yield model, address


@pytest.mark.engine
async def test_the_real_engine(real: tuple[Path, str]) -> None:
    model, address = real
    codec = TokenCodec.load(str(model))
    prompt = codec.render((Message("user", (TextPart("Count to three."),)),), ())
    asked: dict[str, Any] = {"prompt_ids": prompt, "stop_ids": codec.stop_ids}
    async with opened(address) as engine:
        assert await engine.health()
        assert await engine.info() == EngineInfo(str(model), str(model), 4096, ())
        for temperature in (1.0, 0.7):
            chunks = await sample(engine, Sampling(temperature=temperature, max_tokens=40), **asked)
            length = sum(len(chunk.token_ids) for chunk in chunks)
            assert chunks[-1].policy_spans == (PolicySpan("base", 0, length),)
            assert chunks[-1].finish_reason == ("length" if length == 40 else "stop")
        chunks = await sample(engine, Sampling(temperature=1.0, max_tokens=300, stop=("e",)), **asked)
        assert (chunks[-1].finish_reason, chunks[-1].stop_reason) == ("stop", "e")
        stream = codec.text_stream(prompt, (), stop=("e",))
        stream.feed([token for chunk in chunks for token in chunk.token_ids])
        _, parsed, stop_sequence = stream.finish()
        assert stop_sequence == "e" not in parsed.text
        with pytest.raises(ContextTooLong) as raised:
            await sample(engine, prompt_ids=np.full(5000, 5, dtype=np.int32))
        assert (raised.value.prompt_tokens, raised.value.limit) == (5000, 4096)
        with pytest.raises(InvalidRequest, match="out of vocabulary"):
            await sample(engine, prompt_ids=np.array([999_999], dtype=np.int32))
        with pytest.raises(EngineFailed, match="no model 'gone'"):
            await sample(engine, model="gone", **asked)
        schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
        chunks = await sample(engine, Sampling(temperature=1.0, max_tokens=60), structured={"json": schema}, **asked)
        text = codec.decode([token for chunk in chunks for token in chunk.token_ids])
        assert text.lstrip().startswith("{")


@pytest.mark.engine
async def test_the_real_engine_stops_when_the_iterator_is_closed(real: tuple[Path, str]) -> None:
    _, address = real
    async with opened(address) as engine, httpx.AsyncClient(base_url=address) as http:
        chunks = engine.generate(
            prompt_ids=PROMPT, sampling=Sampling(temperature=1.0, max_tokens=4000), stop_ids=(), request_id="long"
        )
        async with aclosing(chunks):
            await anext(chunks)
        for _ in range(200):
            metrics = (await http.get("/metrics")).text
            running = [line for line in metrics.splitlines() if line.startswith("vllm:num_requests_running")]
            if running and running[0].endswith(" 0.0"):
                break
        else:
            pytest.fail(f"still running: {running}")


@pytest.mark.engine
async def test_the_real_engine_aborts_with_what_it_had(real: tuple[Path, str]) -> None:
    _, address = real
    async with opened(address) as engine, httpx.AsyncClient(base_url=address) as http:
        chunks = engine.generate(
            prompt_ids=PROMPT, sampling=Sampling(temperature=1.0, max_tokens=4000), stop_ids=(), request_id="cut"
        )
        read = [await anext(chunks)]
        (await http.post("/pause", params={"mode": "abort"})).raise_for_status()
        read += [chunk async for chunk in chunks]
        (await http.post("/resume")).raise_for_status()
    assert read[-1].finish_reason == "abort"
    length = sum(len(chunk.token_ids) for chunk in read)
    assert read[-1].policy_spans == (PolicySpan("base", 0, length),)
