"""What a sample comes to whose node is lost, what travels, and what workers and driver say to each other."""

import pickle
from pathlib import Path
from typing import Any

import pytest

from dragoman.certs.trust import CERTIFICATE_FILE
from dragoman.gateway_client import EpisodeState, GatewayError
from dragoman.rollout import cluster
from dragoman.rollout.cluster import Board, Parcel, Unfit, fitted, read_certificates, settle
from dragoman.rollout.samples import Outcome, Sample, Setting
from dragoman.rollout.task_files import read_tasks
from dragoman.rollout.tasks import FilesWorkspace, Task, TestsCheck

SAMPLE = Sample(Task("t", "do it"), "pi", 3)


class Gateway:
    """An episode at a gateway; the first end stays."""

    def __init__(self, state: EpisodeState) -> None:
        self.state = state

    def end_episode(self, episode_id: str, end: Any, reason: str | None = None) -> None:
        if self.state.end not in (None, end):
            raise GatewayError("it has ended", "conflict")
        self.state = EpisodeState(end, reason, self.state.calls, 10, 5, self.state.reward)

    def episode(self, episode_id: str) -> EpisodeState:
        return self.state


class Gone(Gateway):
    def end_episode(self, episode_id: str, end: Any, reason: str | None = None) -> None:
        raise GatewayError("nobody answers")


def _settle(gateway: Gateway) -> Outcome:
    return settle(gateway, SAMPLE, "e1", "its node was lost")  # type: ignore[arg-type]  # all that it asks of one


def test_the_episode_of_a_lost_node_is_abandoned_and_its_sample_is_run_again() -> None:
    gateway = Gateway(EpisodeState(None, None, {"completed": 2}, 10, 5))
    outcome = _settle(gateway)
    assert (outcome.key, outcome.episode_id) == (SAMPLE.key, "e1")
    assert (outcome.end, outcome.reason, outcome.again) == ("abandoned", "its node was lost", True)
    assert gateway.state.end == "abandoned"


def test_an_episode_that_ended_before_its_node_was_lost_counts() -> None:
    outcome = _settle(Gateway(EpisodeState("completed", None, {"completed": 2, "failed": 1}, 10, 5, 0.5)))
    assert (outcome.end, outcome.reward, outcome.again, outcome.calls) == ("completed", 0.5, False, 3)
    assert (outcome.prompt_tokens, outcome.completion_tokens) == (10, 5)


def test_a_worker_that_was_thought_lost_cannot_end_its_episode_otherwise() -> None:
    gateway = Gateway(EpisodeState(None, None, {}, 0, 0))
    _settle(gateway)
    with pytest.raises(GatewayError, match="it has ended"):
        gateway.end_episode("e1", "completed")
    assert gateway.state.end == "abandoned"


def test_without_an_episode_or_a_gateway_the_sample_is_run_again() -> None:
    none = settle(Gone(EpisodeState(None, None, {}, 0, 0)), SAMPLE, None, "lost")  # type: ignore[arg-type]
    away = _settle(Gone(EpisodeState(None, None, {}, 0, 0)))
    assert (none.end, none.episode_id, none.again) == ("abandoned", None, True)
    assert (away.end, away.episode_id, away.again) == ("abandoned", "e1", True)
    assert away.reason == "its node was lost; nobody answers"


def test_everything_that_travels_can_be_pickled(tmp_path: Path) -> None:
    path = tmp_path / "tasks.yaml"
    path.write_text(
        "- {id: t, prompt: p, workspace: {files: {a.py: x}}, metadata: {level: 3},\n"
        "   checks: [{kind: unittest, files: {test_a.py: y}}]}\n"
    )
    (task,) = read_tasks(path)
    setting = Setting("run", "http://127.0.0.1:1", "key", 2, installed={"pi": tmp_path}, env={"A": "b"})
    parcel = Parcel(Sample(task, "pi", 0), setting, "ticket", {"a": b"c"})
    back = pickle.loads(pickle.dumps(parcel))
    assert back == parcel
    assert isinstance(back.sample.task.workspace, FilesWorkspace)
    assert isinstance(back.sample.task.checks[0], TestsCheck)
    outcome = Outcome("t", "pi", 0, None, "e", "failed", "why", 0.5, {"a": 0.5}, problems=("p",))
    assert pickle.loads(pickle.dumps(outcome)) == outcome


def test_a_board_knows_who_is_wanted_and_forgets() -> None:
    board = Board()
    assert board.begin("a")
    assert board.stop("a")
    assert not board.wanted("a")
    assert not board.stop("b")  # it had not begun, so it can be cancelled
    assert not board.begin("b")
    board.ask("a", {"task": "t"})
    assert (board.settings("a"), board.settings("b"), board.answer("a")) == ({"task": "t"}, None, None)
    board.give("a", ("it is full", "conflict"))
    assert board.answer("a") == ("it is full", "conflict")
    board.forget("a")
    assert (board.settings("a"), board.answer("a"), board.wanted("a")) == (None, None, True)


def test_a_node_uses_its_own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs, mine, certs = tmp_path / "theirs", tmp_path / "mine", tmp_path / "certs"
    theirs.mkdir()
    mine.mkdir()
    certs.mkdir()
    (theirs / CERTIFICATE_FILE).write_bytes(b"public")
    (theirs / "key.pem").write_bytes(b"secret")
    assert read_certificates(theirs) == {CERTIFICATE_FILE: b"public"}
    setting = Setting("r", "http://h:1", "k", 1, certs=theirs, installed={"pi": tmp_path / "away"}, isolation="limits")
    parcel = Parcel(SAMPLE, setting, "t", read_certificates(theirs))
    monkeypatch.setattr(cluster, "installed", lambda harness: mine)
    found = fitted(parcel, certs)
    assert (found.certs, found.installed["pi"], found.isolation) == (certs, mine, "limits")
    assert (certs / CERTIFICATE_FILE).read_bytes() == b"public"


def test_a_node_that_cannot_run_it_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    setting = Setting("r", "http://h:1", "k", 1, installed={"pi": tmp_path / "away"}, isolation="limits")
    monkeypatch.setattr(cluster, "installed", lambda harness: None)
    with pytest.raises(Unfit, match="pi is not installed there: `dragoman harness install pi`"):
        fitted(Parcel(SAMPLE, setting, "t", {}), tmp_path)
