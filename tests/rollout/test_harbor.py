"""Harbor's tasks, and the job that Harbor is given for one trial."""

from pathlib import Path

import pytest

from dragoman.rollout.harbor import LOCAL, PLUGIN, HarborSetting, find_tasks, job_config


def _task(folder: Path, text: str | None = "do it") -> None:
    folder.mkdir(parents=True)
    (folder / "task.toml").write_text("")
    if text is not None:
        (folder / "instruction.md").write_text(text)


def test_tasks_are_folders_with_a_task_file(tmp_path: Path) -> None:
    _task(tmp_path / "set" / "b")
    _task(tmp_path / "set" / "a", None)
    (tmp_path / "set" / "c").mkdir()
    found = find_tasks(tmp_path / "set")
    assert [(task.id, task.prompt) for task in found] == [("a", ""), ("b", "do it")]
    assert found[1].metadata == {"harbor_task": str(tmp_path / "set" / "b")}
    assert [task.id for task in find_tasks(tmp_path / "set" / "b")] == ["b"]


def test_a_folder_without_tasks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no task of Harbor"):
        find_tasks(tmp_path)


def _setting(agent: str, environment: str) -> HarborSetting:
    return HarborSetting("harbor", agent, "openai/policy", environment, "http://h:1", Path("/jobs"), 60)


def test_a_job_has_one_trial_whose_agent_has_the_episodes_key() -> None:
    config = job_config(_setting("claude-code", "docker"), Path("/t/a"), "run-a-0", {"OPENAI_API_KEY": "dgm_x"})
    assert config["agents"] == [
        {"name": "claude-code", "model_name": "openai/policy", "env": {"OPENAI_API_KEY": "dgm_x"}}
    ]
    assert config["environment"] == {"type": "docker"}
    assert (config["tasks"], config["n_attempts"], config["job_name"]) == ([{"path": "/t/a"}], 1, "run-a-0")


def test_classes_are_named_by_import_path() -> None:
    config = job_config(_setting("my:Agent", "local"), Path("/t"), "n", {})
    assert config["agents"][0]["import_path"] == "my:Agent"
    assert config["environment"] == {"import_path": LOCAL}
    assert (PLUGIN / f"{LOCAL.partition(':')[0]}.py").is_file()
    assert job_config(_setting("acp:x@1", "my:Sandbox"), Path("/t"), "n", {})["agents"][0]["name"] == "acp:x@1"
