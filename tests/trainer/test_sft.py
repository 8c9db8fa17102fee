"""SFT on stored tokens: the loss is the mean negative log-likelihood of what was sampled, and of nothing else."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from transformers import AutoTokenizer

from dragoman.store.calls import write_arrivals, write_outcomes
from dragoman.store.database import Database
from dragoman.store.episodes import end_episode, open_episode, set_reward
from dragoman.store.records import EpisodeSpec
from dragoman.trainer.config import ConfigError, SFTEpisodes, read_sft
from dragoman.trainer.observed import render_with
from dragoman.trainer.sft import Account, make_trainer, read_rows, train_sft
from tests.models import tiny_model_folder
from tests.trainer.made_groups import MadeGroup, Maker, flat, scorer, small_model, store_group
from tests.trainer.test_observed import ANSWER, ASK, SYSTEM, observed


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_model(tmp_path_factory.mktemp("model"))


def stored(folder: Path, model: Path) -> tuple[Database, list[MadeGroup]]:
    database = Database.open(f"sqlite:///{folder}/a.db")
    make = Maker(scorer(model))
    groups = [
        MadeGroup(1, (make.forked("e00000000011", 1.0), make.branched("e00000000012", 1.0))),
        flat(make, 2, [1.0, 0.0, 0.5]),
    ]
    with database.session() as session:
        for group in groups:
            store_group(session, group, at=100.0 * group.row)
    return database, groups


def config(folder: Path, model: Path, **more: Any) -> Path:
    options = {
        "model_name_or_path": str(model),
        "output_dir": str(folder / "out"),
        "store": f"sqlite:///{folder}/a.db",
        "learning_rate": 1e-3,
        "eval_share": 0.0,
        "report_to": "none",
        "gradient_checkpointing": False,
        **more,
    }
    path = folder / "sft.yaml"
    path.write_text(yaml.safe_dump(options))
    return path


def test_the_loss_is_the_nll_of_the_sampled_tokens(model: Path, tmp_path: Path) -> None:
    database, groups = stored(tmp_path, model)
    account = Account()
    with database.reading() as session:
        rows, held_out = read_rows(session, SFTEpisodes(eval_share=0.0), lambda *_: [], account)
    database.close()
    assert held_out == []
    assert len(rows) == 6
    assert account.episodes == {"train": 3, "held_out": 0, "low_reward": 2}
    assert account.left_out == {"side": 1, "constrained": 1}

    score = scorer(model)
    wanted, tokens = 0.0, 0
    for episode in (*groups[0].episodes, groups[1].episodes[0]):
        trained = {one for sequence in episode.sequences for one in sequence}
        for call in episode.calls:
            if call.id in trained:
                wanted -= sum(score([*call.prompt, *call.completion])[len(call.prompt) - 1 :])
                tokens += len(call.completion)
    assert account.trained_tokens == tokens

    arguments, _, _ = read_sft(
        config(tmp_path, model, per_device_train_batch_size=2, gradient_accumulation_steps=3, max_steps=1)
    )
    trainer = make_trainer(arguments, str(model), AutoTokenizer.from_pretrained(model), rows, [])
    trainer.train()
    assert trainer.state.log_history[0]["loss"] == pytest.approx(wanted / tokens, abs=1e-5)


def test_a_whole_run(model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    stored(tmp_path, model)[0].close()
    account = train_sft(*read_sft(config(tmp_path, model, max_steps=2, save_steps=1)))
    assert account.rows == {"sampled": 6}
    assert (tmp_path / "out" / "final" / "model.safetensors").exists()
    assert "6 of sampled tokens, 0 rendered" in capfd.readouterr().err
    with pytest.raises(ConfigError, match="no episode is accepted"):
        train_sft(*read_sft(config(tmp_path, model, min_reward=7.0)))


def test_observed_episodes_are_rendered_once_and_marked(tmp_path: Path) -> None:
    database = Database.open(f"sqlite:///{tmp_path}/a.db")
    call = observed("c" * 20, ANSWER)
    assert call.outcome is not None
    from tests.trainer.test_observed import blob

    arrival = replace(call.arrival, episode_id="e00000000001")
    outcome = replace(call.outcome, messages=(blob(SYSTEM), blob(ASK)))
    with database.session() as session:
        open_episode(
            session,
            EpisodeSpec("t"),
            episode_id="e00000000001",
            token_hash="0" * 64,
            now=1.0,
            expires_at=9.0,
        )
        assert write_arrivals(session, [arrival]) == [None]
        assert write_outcomes(session, [outcome]) == [None]
        set_reward(session, "e00000000001", 1.0, components=None, now=2.0)
        end_episode(session, "e00000000001", "completed", reason=None, now=3.0)
    tokenizer = AutoTokenizer.from_pretrained(tiny_model_folder())
    for wanted in (False, True):
        account = Account()
        with database.reading() as session:
            rows, _ = read_rows(session, SFTEpisodes(eval_share=0.0, observed=wanted), render_with(tokenizer), account)
        assert [row["rendered"] for row in rows] == [True] * wanted
        assert account.left_out == ({} if wanted else {"observed": 1})
    labels = [label for label in rows[0]["labels"] if label != -100]
    assert str(tokenizer.decode(labels)).startswith("One file.<|im_end|>")
    assert json.dumps(rows[0])
    database.close()
    assert torch.tensor(labels).min() >= 0
