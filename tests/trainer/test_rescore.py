import hashlib
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dragoman.addons.engine import Engine
from dragoman.addons.messages import Message, Sampling, TextPart
from dragoman.addons.tokens import TokenCodec
from dragoman.store.calls import write_arrivals, write_outcomes
from dragoman.store.database import Database
from dragoman.store.episodes import open_episode
from dragoman.store.records import CallArrival, CallOutcome, EpisodeSpec, PolicySpan
from dragoman.trainer.rescore import Rescored, stored_calls, summary, why_skipped
from dragoman.trainer.tiny_model import build_tiny
from tests.models import engine_python, real_engine, smollm2_folder, tiny_model_folder


def outcome(call_id: str, completion: list[int] | None, **more: Any) -> CallOutcome:
    sampled = {} if completion is None else {
        "completion_ids": np.array(completion, np.int32),
        "logprobs": np.full(len(completion), -1.0, np.float32),
        "policy_spans": (PolicySpan("base", 0, len(completion)),) if completion else (),
    }  # fmt: skip
    prompt = {"prompt_ids": np.array([5, 6], np.int32), "prompt_len": 2}
    fields: dict[str, Any] = {"status": "answered", **prompt, **sampled, **more}
    return CallOutcome(id=call_id, http_status=200, finished_at=2.0, **fields)


def store(database: Database, episode_id: str, outcomes: list[CallOutcome], now: float = 1.0) -> None:
    with database.session() as session:
        open_episode(
            session,
            EpisodeSpec(),
            episode_id=episode_id,
            token_hash=hashlib.sha256(episode_id.encode()).hexdigest(),
            now=now,
            expires_at=now + 9,
        )
        arrivals = [CallArrival(one.id, episode_id, "anthropic", "/v1/messages", now) for one in outcomes]
        assert write_arrivals(session, arrivals) == [None] * len(outcomes)
        assert write_outcomes(session, outcomes) == [None] * len(outcomes)


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({}, None),
        ({"sampling_used": {"temperature": 0.7, "top_p": 1.0, "top_k": -1, "max_tokens": 9}}, None),
        ({"sampling_used": {"top_p": 0.9}}, "top_p 0.9"),
        ({"sampling_used": {"repetition_penalty": 1.1}}, "repetition_penalty 1.1"),
        ({"constrained": True}, "constrained"),
    ],
)
def test_calls_whose_distribution_was_changed_are_skipped(more: dict[str, Any], reason: str | None) -> None:
    assert why_skipped(outcome("a", [7], **more)) == reason


def test_calls_without_tokens_are_skipped() -> None:
    assert why_skipped(outcome("a", None)) == why_skipped(outcome("a", [])) == "nothing was sampled"


def test_stored_calls_come_with_their_full_prompts(tmp_path: Path) -> None:
    database = Database.open(f"sqlite:///{tmp_path}/a.db")
    child = outcome("b" * 20, [9], parent_id="a" * 20, shared_len=4, prompt_len=6)
    store(database, "e1", [outcome("a" * 20, [7, 8]), child])
    store(database, "e2", [outcome("c" * 20, [7]), outcome("d" * 20, None, status="failed")], now=2.0)
    found = stored_calls(database, None, 10)
    assert [(one.id[0], prompt.tolist()) for one, prompt in found] == [
        ("c", [5, 6]),
        ("a", [5, 6]),
        ("b", [5, 6, 7, 8, 5, 6]),
    ]
    assert [one.id[0] for one, _ in stored_calls(database, "e1", 1)] == ["a"]
    database.close()


def test_the_mean_is_over_tokens() -> None:
    calls = [
        Rescored("a", 1.0, 10, ("base",), largest=0.2, mean=0.1),
        Rescored("b", 1.0, 30, ("base",), largest=0.1, mean=0.02),
        Rescored("c", 1.0, 5, ("base",), None, None, skipped="constrained"),
    ]
    total = summary(calls)
    assert total == {"calls": 2, "skipped": 1, "tokens": 40, "largest": 0.2, "mean": pytest.approx(0.04)}
    assert summary([])["largest"] is None


@pytest.mark.engine
@pytest.mark.parametrize("model", ["tiny", "smollm2"])
async def test_stored_logprobs_are_those_of_the_weights(model: str, tmp_path: Path) -> None:
    folder = tiny_model_folder() if model == "tiny" else smollm2_folder()
    codec = TokenCodec.load(str(folder))
    url = f"sqlite:///{tmp_path}/a.db"
    database = Database.open(url)
    outcomes = []
    with real_engine(folder, tmp_path, max_model_len=4096) as address:
        engine = Engine(address)
        for number, temperature in enumerate((1.0, 1.0, 0.7, 0.7, 0.0)):
            prompt = codec.render((Message("user", (TextPart(f"What is {number} plus {number}?"),)),), ())
            sampling = Sampling(temperature=temperature, max_tokens=60)
            chunks = [
                chunk
                async for chunk in engine.generate(
                    prompt_ids=prompt, sampling=sampling, stop_ids=codec.stop_ids, request_id=f"call{number}"
                )
            ]
            outcomes.append(
                CallOutcome(
                    id=f"call{number}".ljust(20, "0"),
                    status="answered",
                    http_status=200,
                    finished_at=2.0,
                    sampling_used={"temperature": temperature, "max_tokens": 60},
                    prompt_ids=prompt,
                    prompt_len=len(prompt),
                    completion_ids=np.array([token for chunk in chunks for token in chunk.token_ids], np.int32),
                    logprobs=np.array([value for chunk in chunks for value in chunk.logprobs], np.float32),
                    policy_spans=chunks[-1].policy_spans or (),
                )
            )
        await engine.close()
    store(database, "e1", outcomes)
    database.close()

    done = run_rescore(url, folder, "--json", "--tolerance", "1e-3")
    assert done.returncode == 0, done.stdout + done.stderr
    total = json.loads(done.stdout)["summary"]
    assert (total["calls"], total["skipped"]) == (5, 0)
    assert total["tokens"] == sum(len(one.completion_ids) for one in outcomes if one.completion_ids is not None)
    assert total["largest"] < 1e-3

    others = build_tiny(tmp_path / "others", seed=1)
    if model == "tiny":
        wrong = run_rescore(url, others, "--tolerance", "1e-3")
        assert wrong.returncode == 1, wrong.stdout + wrong.stderr
        assert "5 calls" in wrong.stdout


def run_rescore(url: str, folder: Path, *options: str) -> "subprocess.CompletedProcess[str]":
    command = [str(engine_python()), "-m", "dragoman.trainer.rescore", "--store", url, "--model", str(folder), *options]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    return subprocess.run(command, capture_output=True, text=True, env=environment)
