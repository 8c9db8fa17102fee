"""The prefix in a trace is the prefix that the policy saw: whole traces of a real vLLM, scored again."""

import json
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import text

from dragoman.store.database import Database
from dragoman.store.packing import pack_ids, unpack_ids
from tests.conversations import CALL, branching
from tests.gateway import RunningGateway, running_gateway
from tests.models import engine_python, real_engine, smollm2_folder

pytestmark = pytest.mark.engine

CONVERSATIONS = 5
"""Each gives four traces of several turns at least."""


@pytest.fixture(scope="module")
def episodes(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunningGateway, list[str]]:
    folder = tmp_path_factory.mktemp("traces")
    settings = {"dragoman_max_reply_tokens": str(CALL)}
    with (
        real_engine(smollm2_folder(), folder) as engine,
        running_gateway(folder / "home", engine, settings=settings) as gateway,
    ):
        opened = [gateway.open(task="traces") for _ in range(CONVERSATIONS)]
        with ThreadPoolExecutor(CONVERSATIONS) as pool:
            jobs = [
                pool.submit(branching, gateway.address, episode.api_key, at, 24) for at, episode in enumerate(opened)
            ]
            for job in jobs:
                job.result()
    return gateway, [episode.id for episode in opened]


def rescored(gateway: RunningGateway, episodes: list[str]) -> dict[str, Any]:
    command = [str(engine_python()), "-m", "dragoman.trainer.rescore_traces", "--store", gateway.store_url]
    command += ["--model", str(smollm2_folder()), "--turns", "2", "--json"]
    for episode_id in episodes:
        command += ["--episode", episode_id]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_every_trained_token_has_the_stored_logprob_behind_what_stands_before_it(
    episodes: tuple[RunningGateway, list[str]],
) -> None:
    gateway, ids = episodes
    answer = rescored(gateway, ids)
    summary = answer["summary"]
    print(summary)
    assert summary["traces"] >= 4 * CONVERSATIONS
    assert summary["skipped"] == 0
    assert all(one["tokens"] > 0 for one in answer["traces"])
    assert summary["largest"] <= 1e-3
    # Each conversation has a trace behind another's turn, behind an edit, behind a forced call, and behind a cut reply.
    assert all(number >= CONVERSATIONS for number in summary["context"].values()), summary["context"]


def test_one_other_token_before_them_would_be_seen(episodes: tuple[RunningGateway, list[str]]) -> None:
    gateway, ids = episodes
    database = Database.open(gateway.store_url)
    with database.session() as session:
        connection = session.connection()
        roots = "SELECT id, prompt_ids FROM calls WHERE episode_id = :e AND parent_id IS NULL ORDER BY arrived_at"
        found = connection.execute(text(roots), {"e": ids[0]}).first()
        assert found is not None
        prompt = unpack_ids(found.prompt_ids).copy()
        prompt[4] += 1
        change = "UPDATE calls SET prompt_ids = :p WHERE id = :id"
        connection.execute(text(change), {"p": pack_ids(prompt), "id": found.id})
    database.close()
    answer = rescored(gateway, ids[:1])
    assert any(one["call_ids"][0] == found.id and one["largest"] > 1e-3 for one in answer["traces"])
