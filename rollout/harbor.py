"""Harbor's tasks, agents and sandboxes with the gateway as the model: each trial is an episode, its reward Harbor's.

Rules of this module: Harbor is another program in an environment of its own, never imported here. Each sample is a
Harbor job of one trial, whose agent gets the episode's own key in its variables; the configuration file that holds it
is private and goes with the run. ``harbor_results`` says what came of it.
"""

import json
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dragoman.gateway_client import GatewayClient, GatewayError
from dragoman.rollout import setups
from dragoman.rollout.episode_run import EpisodeRun, Judged, Ran, run_in_episode
from dragoman.rollout.harbor_results import judge_trial, read_trial
from dragoman.rollout.health import Health, PatientClient
from dragoman.rollout.process import Launch, Stopped
from dragoman.rollout.runner import RunOne
from dragoman.rollout.samples import MARGIN, Outcome, Sample, Setting, group_name
from dragoman.rollout.tasks import Task
from dragoman.store.records import EpisodeEnd, JsonObject

__all__ = ["HarborSetting", "find_tasks", "job_config", "on_harbor"]

LOCAL = "dragoman_local:LocalEnvironment"
PLUGIN = Path(__file__).resolve().parent / "harbor_plugin"
INHERITED = ("PATH", "HOME", "USER", "LANG", "TMPDIR", "XDG_RUNTIME_DIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME")
"""Of our own variables Harbor gets these, and those whose names begin with ``DOCKER_``."""


@dataclass(frozen=True)
class HarborSetting:
    program: str
    """The ``harbor`` command."""
    agent: str
    """One of Harbor's agents, or ``module:Class``."""
    model: str | None
    """As Harbor writes it: ``provider/name``."""
    environment: str
    """One of Harbor's environments, ``module:Class``, or ``local``."""
    address: str
    """``http://host:port`` of the gateway as agents reach it from their sandbox."""
    jobs: Path
    """Where Harbor keeps its jobs."""
    time_limit: float
    """Seconds for a whole trial with its sandbox; Harbor's own limits come first."""
    reward: str | None = None
    """Which of several rewards counts. None: ``reward``, or the only one."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Further variables for Harbor: keys of sandboxes, for example."""
    words: tuple[str, ...] = ()
    """Further words for ``harbor run``."""


def find_tasks(folder: Path) -> tuple[Task, ...]:
    """Harbor's tasks in a folder, or the one that it is, by name. Raises ``ValueError`` when there is none."""
    found = [folder] if (folder / "task.toml").is_file() else sorted(path.parent for path in folder.glob("*/task.toml"))
    if not found:
        raise ValueError(f"{folder} has no task of Harbor (a folder with task.toml); `harbor download` gets a dataset")
    tasks = []
    for path in found:
        prompt = path / "instruction.md"
        text = prompt.read_text(errors="replace") if prompt.is_file() else ""
        tasks.append(Task(path.name, text, metadata={"harbor_task": str(path.resolve())}))
    return tuple(tasks)


def job_config(setting: HarborSetting, task: Path, name: str, env: Mapping[str, str]) -> JsonObject:
    """Harbor's job of one trial."""
    agent: dict[str, Any] = {"model_name": setting.model, "env": dict(env)}
    agent["import_path" if ":" in setting.agent and not setting.agent.startswith("acp:") else "name"] = setting.agent
    wanted = LOCAL if setting.environment == "local" else setting.environment
    return {
        "job_name": name,
        "jobs_dir": str(setting.jobs),
        "n_attempts": 1,
        "n_concurrent_trials": 1,
        "quiet": True,
        "skip_credential_checks": True,
        "agents": [agent],
        "environment": {"import_path" if ":" in wanted else "type": wanted},
        "tasks": [{"path": str(task)}],
    }


def on_harbor(harbor: HarborSetting, health: Health) -> RunOne:
    """Samples are Harbor's trials; of a run's ``Setting`` only what names episodes and groups is used."""

    def work(
        sample: Sample, setting: Setting, stopped: Callable[[], bool], on_opened: Callable[[Sample, str], None]
    ) -> Outcome:
        health.wait(stopped)
        began, opened = time.monotonic(), list[str]()

        def note(episode_id: str) -> None:
            opened.append(episode_id)
            on_opened(sample, episode_id)

        with (
            PatientClient(setting.gateway, setting.operator_key, health, stopped) as client,
            tempfile.TemporaryDirectory(prefix="dragoman-harbor-run-", ignore_cleanup_errors=True) as folder,
        ):
            trial = _Trial(harbor, sample, setting, health, Path(folder), stopped, began)
            try:
                finished = run_in_episode(client, trial.wanted(), on_opened=lambda episode: note(episode.id))
            except (ValueError, OSError, GatewayError) as error:
                end: EpisodeEnd = "abandoned" if isinstance(error, GatewayError) else "failed"
                return Outcome(*sample.key, opened[0] if opened else None, end, str(error))
            except Stopped:
                raise
            except Exception as error:  # a defect of ours must not end all other samples
                why = f"the launcher failed: {type(error).__name__}: {error}"
                return Outcome(*sample.key, opened[0] if opened else None, "abandoned", why)
            assert finished.judged is not None
            return counted(client, sample, finished.episode_id, finished.judged, finished.problems, began)

    return work


def counted(
    client: GatewayClient, sample: Sample, episode_id: str, judged: Judged, problems: tuple[str, ...], began: float
) -> Outcome:
    """The outcome with what the gateway counted."""
    calls, tokens = 0, (0, 0)
    try:
        state = client.episode(episode_id)
        calls, tokens = sum(state.calls.values()), (state.prompt_tokens, state.completion_tokens)
    except GatewayError as error:
        problems = (*problems, f"its calls are not counted: {error}")
    return Outcome(
        *sample.key,
        episode_id,
        judged.end,
        judged.reason,
        judged.reward,
        judged.components,
        calls,
        *tokens,
        time.monotonic() - began,
        judged.end == "abandoned",
        problems,
    )


@dataclass(frozen=True)
class _Trial:
    harbor: HarborSetting
    sample: Sample
    setting: Setting
    health: Health
    folder: Path
    stopped: Callable[[], bool]
    began: float

    @property
    def name(self) -> str:
        """Of Harbor's job; unique, for a sample may be run again."""
        return f"{self.setting.run}-{self.sample.task.id}-{self.sample.number}-{self.folder.name[-8:]}"

    def wanted(self) -> EpisodeRun:
        sample, setting = self.sample, self.setting
        work = self.folder / "work"
        work.mkdir()
        return EpisodeRun(
            name=sample.harness,
            harness=None,
            prepare=self.prepare,
            workdir=work,
            timeout=self.harbor.time_limit,
            about={"run": setting.run, "sample": sample.number, "mode": "base-url", "harbor_job": self.name},
            home=self.folder,
            task=sample.task.id,
            group=group_name(setting, sample),
            expected=setting.samples,
            deadline_seconds=setting.deadline or self.harbor.time_limit + MARGIN,
            profile=setting.profile,
            temperature=setting.temperature,
            judge=self.judge,
            untrusted=True,
            stopped=self.stopped,
        )

    def prepare(self, token: str, home: Path) -> Launch:
        ask = setups.Ask(
            *("base-url", "", self.harbor.address, f"dgm_{token}", home, "", None, None),
            max_reply_tokens=self.setting.max_reply_tokens,
            context_tokens=self.setting.context_tokens,
        )
        task = Path(str(self.sample.task.metadata["harbor_task"]))
        config = job_config(self.harbor, task, self.name, setups.command(ask).env)
        path = home / "job.json"
        command = (self.harbor.program, "run", "--config", str(path), "--quiet", "--yes", *self.harbor.words)
        cwd = self.folder / "work"
        # Told to end, Harbor takes its sandbox down itself.
        return Launch(command, self.env(), ((path, json.dumps(config)),), cwd, "", supervised=True)

    def env(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if name in INHERITED or name.startswith("DOCKER_")}
        found = {"HARBOR_TELEMETRY": "0", **kept, **self.harbor.env}
        paths = [str(PLUGIN), *filter(None, [self.harbor.env.get("PYTHONPATH")])]
        return {**found, "PYTHONPATH": ":".join(paths)}

    def judge(self, ran: Ran) -> Judged:
        problem = self.health.trouble_since(self.began)
        if problem is not None and ran.end != "completed":
            return Judged("abandoned", f"{problem} ({ran.reason})")
        try:
            judged = judge_trial(read_trial(self.harbor.jobs / self.name), self.harbor.reward)
        except ValueError as error:
            if ran.end == "timed_out":
                return Judged(ran.end, ran.reason)
            said = (ran.stderr or ran.stdout).decode(errors="replace").strip().splitlines()
            return Judged("abandoned", f"{error}; Harbor ended with {ran.result.exit_code}: {said[-1] if said else ''}")
        if problem is not None and judged.end != "completed":
            return Judged("abandoned", f"{problem} ({judged.reason})", artefacts=judged.artefacts)
        return judged
