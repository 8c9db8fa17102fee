"""What the store holds is what was sampled: official SDKs, a real gateway, a real vLLM, and a second opinion on it."""

import json
import os
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anthropic
import numpy as np
import openai
import pytest

from dragoman.addons.tokens import TokenCodec
from tests.gateway import RunningGateway, running_gateway
from tests.models import engine_python, real_engine, smollm2_folder

pytestmark = pytest.mark.engine

CALLS = 200
LEAST = 20
"""Shortest completion that counts, in tokens."""
TOPICS = [
    "Tell a long story about a fox.",
    "Explain how rain forms, in detail.",
    "Write a Python function that sorts a list, and explain it.",
    "Écris un poème sur la mer, avec des accents.",
    "List ten animals as JSON.",
]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    folder = tmp_path_factory.mktemp("exact")
    with real_engine(smollm2_folder(), folder) as engine, running_gateway(folder / "home", engine) as running:
        yield running


def chat(gateway: RunningGateway, key: str, topic: str, stream: bool) -> str:
    with openai.OpenAI(base_url=f"{gateway.address}/v1", api_key=key, max_retries=0) as client:
        said: Any = [{"role": "user", "content": topic}]
        if not stream:
            reply = client.chat.completions.create(model="m", messages=said, max_tokens=40)
            return reply.choices[0].message.content or ""
        chunks: Any = client.chat.completions.create(model="m", messages=said, max_tokens=40, stream=True)
        return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


def messages(gateway: RunningGateway, key: str, topic: str, stream: bool) -> str:
    with anthropic.Anthropic(base_url=gateway.address, api_key=key, max_retries=0) as client:
        request: Any = {"model": "m", "max_tokens": 40, "messages": [{"role": "user", "content": topic}]}
        if stream:
            with client.messages.stream(**request) as events:
                reply = events.get_final_message()
        else:
            reply = client.messages.create(**request)
        return "".join(block.text for block in reply.content if block.type == "text")


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_stored_ids_decode_to_the_reply_and_rescore_to_the_stored_logprobs(
    gateway: RunningGateway, temperature: float
) -> None:
    episode = gateway.open(task="exact", temperature=temperature)
    jobs = [
        (chat if number % 2 else messages, TOPICS[number % len(TOPICS)], bool(number // 2 % 2))
        for number in range(CALLS // 2 + 20)
    ]
    with ThreadPoolExecutor(8) as pool:
        texts = list(pool.map(lambda job: job[0](gateway, episode.api_key, job[1], job[2]), jobs))

    codec = TokenCodec.load(str(smollm2_folder()))
    calls = gateway.calls(episode.id)
    assert len(calls) == len(jobs)
    long_enough = 0
    decoded = []
    for call in calls:
        outcome = call.outcome
        assert outcome is not None
        assert outcome.status == "answered"
        assert outcome.completion_ids is not None
        assert outcome.logprobs is not None
        assert len(outcome.completion_ids) == len(outcome.logprobs)
        assert np.isfinite(outcome.logprobs).all()
        assert outcome.sampling_used == {"temperature": temperature, "top_p": 1.0, "max_tokens": 40}
        long_enough += len(outcome.completion_ids) >= LEAST
        decoded.append(reply_text(codec, outcome.completion_ids.tolist()))
    assert sorted(decoded) == sorted(texts)
    assert long_enough >= CALLS // 2

    command = [str(engine_python()), "-m", "dragoman.trainer.rescore", "--store", gateway.store_url]
    command += ["--model", str(smollm2_folder()), "--episode", episode.id, "--json"]
    # One thread: beside a running engine two would wait for each other most of the time.
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    rescored = json.loads(done.stdout)["summary"]
    print(f"temperature {temperature}: {long_enough} calls of at least {LEAST} tokens, {rescored}")
    assert (rescored["calls"], rescored["skipped"]) == (len(jobs), 0)
    assert rescored["largest"] <= 1e-3


def reply_text(codec: TokenCodec, ids: list[int]) -> str:
    """The plain decoding of a completion: stop ids off, reasoning and tool-call spans off, nothing else."""
    tokenizer = codec._tokenizer
    ids = [token for token in ids if token not in codec.stop_ids]
    opening = tokenizer.convert_tokens_to_ids("<tool_call>")
    think, closed = (tokenizer.convert_tokens_to_ids(marker) for marker in ("<think>", "</think>"))
    trimmed = False
    if ids and ids[0] == think:
        end = ids.index(closed) + 1 if closed in ids else len(ids)
        ids, trimmed = ids[end:], True
    cut = ids.index(opening) if opening in ids else None
    text = str(tokenizer.decode(ids[:cut], skip_special_tokens=True, clean_up_tokenization_spaces=False))
    text = text.lstrip() if trimmed else text
    return text if cut is None else text.rstrip()
