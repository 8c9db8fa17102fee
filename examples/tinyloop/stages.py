"""The stages of the example, each in a folder of its own, each done once: what is there is not made again.

Rules of this module: a stage ends by writing its mark; one that was interrupted is made anew, but for the loop, which
goes on where it was. Only commands that a user has are called: engine, serve, rollout, train, loop.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import yaml

from dragoman.cli.processes import Child, free_port, running
from dragoman.home import cache_folder
from examples.tinyloop.tasks import Job, make_jobs, write_tasks
from examples.tinyloop.teacher import make_script
from examples.tinyloop.texts import write_texts

MARK = "done.json"
CAPTURED = 10
"""Jobs whose prompts the tokenizer is trained on."""


@dataclass(frozen=True)
class Plan:
    """What one run is."""

    harness: str
    seed: int
    folder: Path
    train: int = 256
    held_out: int = 64
    unseen: int = 32
    teacher_samples: int = 4
    """Teacher's episodes of each job."""
    warm_up: dict[str, Any] = field(default_factory=dict)
    """Changes of the SFT configuration."""
    grpo: dict[str, Any] = field(default_factory=dict)
    """Changes of the GRPO configuration."""
    loop: dict[str, Any] = field(default_factory=dict)
    """Changes of the loop's configuration."""
    concurrency: int = 4

    @property
    def jobs(self) -> dict[str, list[Job]]:
        return make_jobs(train=self.train, held_out=self.held_out, unseen=self.unseen, seed=self.seed)


def run_stages(plan: Plan) -> None:
    """Everything, from the tasks to the last evaluation."""
    plan.folder.mkdir(parents=True, exist_ok=True)
    tasks = write_tasks(plan.folder, plan.jobs)
    texts = _stage(plan.folder / "capture", lambda folder: capture(plan, tasks, folder)) / "texts.json"
    base = _stage(plan.folder / "base", lambda folder: make_model(plan, texts, folder)) / "model"
    teacher = _stage(plan.folder / "teacher", lambda folder: teach(plan, tasks, base, folder))
    warm = _stage(plan.folder / "warm", lambda folder: warm_up(plan, base, teacher, folder)) / "model"
    train(plan, tasks, warm, plan.folder / "loop")


def capture(plan: Plan, tasks: Path, folder: Path) -> None:
    """What the harness really sends, with a first model's tokenizer: texts for the tokenizer of our own."""
    tiny = cache_folder() / "models" / "tiny"
    jobs = plan.jobs["train"][:CAPTURED]
    script = make_script(jobs, plan.harness, samples=4, seed=plan.seed)
    names = [f"train-{number:03}-{job.kind}" for number, job in enumerate(jobs)]
    with scripted(plan, tiny, script, folder) as home:
        rollout(plan, tasks, home, ["--samples", "2", *(word for name in names for word in ("--task", name))])
    write_texts(f"sqlite:///{folder / 'dragoman.db'}", tiny, folder / "texts.json")


def make_model(plan: Plan, texts: Path, folder: Path) -> None:
    run([engine_python(), "-m", "examples.tinyloop.model", folder / "model", "--texts", texts, "--seed", plan.seed])


def teach(plan: Plan, tasks: Path, base: Path, folder: Path) -> None:
    """The teacher's episodes, through the gateway, in the tokens of our own model."""
    script = make_script(plan.jobs["train"], plan.harness, samples=plan.teacher_samples, seed=plan.seed)
    with scripted(plan, base, script, folder) as home:
        rollout(plan, tasks, home, ["--split", "train", "--samples", plan.teacher_samples])


def warm_up(plan: Plan, base: Path, teacher: Path, folder: Path) -> None:
    """SFT on all of the teacher's episodes, mistakes included."""
    config = {
        "model_name_or_path": str(base),
        "store": f"sqlite:///{teacher / 'dragoman.db'}",
        "output_dir": str(folder / "run"),
        "min_reward": 0.0,
        "eval_share": 0.0,
        "num_train_epochs": 8,
        "per_device_train_batch_size": 16,
        "learning_rate": 1e-3,
        "lr_scheduler_type": "linear",
        "warmup_steps": 30,
        "save_strategy": "no",
        "report_to": "none",
        "seed": plan.seed,
        **plan.warm_up,
    }
    (folder / "sft.yaml").write_text(yaml.safe_dump(config))
    run([sys.executable, "-m", "dragoman", "train", "sft", folder / "sft.yaml"])
    shutil.copytree(folder / "run" / "final", folder / "model")


def train(plan: Plan, tasks: Path, warm: Path, folder: Path) -> None:
    """Evaluate, train while sampling, evaluate: ``dragoman loop`` with a real engine."""
    folder.mkdir(parents=True, exist_ok=True)
    grpo = {
        "model_name_or_path": str(warm),
        "groups_per_step": 4,
        "learning_rate": 3e-4,
        "per_device_train_batch_size": 16,
        "max_microbatch_tokens": 8192,
        "beta": 0.0,
        "save_steps": 5,
        "max_staleness": 8,
        "report_to": "none",
        "seed": plan.seed,
        **plan.grpo,
    }
    loop = {
        "run": f"{plan.harness}-{plan.seed}",
        "tasks": str(tasks),
        "trainer": str(folder / "grpo.yaml"),
        "harnesses": [plan.harness],
        "eval_splits": ["held-out", "unseen"],
        "samples": 8,
        "eval_samples": 4,
        "concurrency": plan.concurrency,
        "ahead": 8,
        "eval_every": 40,
        "stop_versions": 40,
        "seed": plan.seed,
        "time_limit": 120,
        **plan.loop,
    }
    (folder / "grpo.yaml").write_text(yaml.safe_dump(grpo))
    (folder / "loop.yaml").write_text(yaml.safe_dump(loop))
    port, address = free_port(), f"127.0.0.1:{free_port()}"
    env = environment(folder)
    engine = [sys.executable, "-m", "dragoman", "engine", "--model", warm, "--port", port, "--max-model-len", 16384]
    engine += ["--", "--max-num-seqs", "16"]
    with running([str(word) for word in engine], env, folder / "engine.log") as sampling:
        serve = ["serve", "--listen", address, "--engine", f"http://127.0.0.1:{port}", "--max-reply-tokens", "128"]
        with running([sys.executable, "-m", "dragoman", *serve], env, folder / "gateway.log") as gateway:
            wait_for((f"http://{address}", gateway), (f"http://127.0.0.1:{port}", sampling))
            run([sys.executable, "-m", "dragoman", "loop", folder / "loop.yaml", "--gateway", f"http://{address}"], env)


@contextmanager
def scripted(plan: Plan, model: Path, script: Sequence[dict[str, Any]], folder: Path) -> Iterator[tuple[str, Path]]:
    """A gateway on a scripted engine: its address and its state folder."""
    (folder / "script.json").write_text(json.dumps(list(script)))
    port, address = free_port(), f"127.0.0.1:{free_port()}"
    engine = ["-m", "dragoman.rollout.scripted_engine", "--model", str(model), "--port", str(port)]
    engine += ["--script", str(folder / "script.json")]
    env = environment(folder)
    serve = ["serve", "--listen", address, "--engine", f"http://127.0.0.1:{port}", "--max-reply-tokens", "256"]
    with (
        running([sys.executable, *engine], env, folder / "engine.log") as sampling,
        running([sys.executable, "-m", "dragoman", *serve], env, folder / "gateway.log") as gateway,
    ):
        wait_for((f"http://{address}", gateway), (f"http://127.0.0.1:{port}", sampling))
        yield f"http://{address}", folder


def rollout(plan: Plan, tasks: Path, home: tuple[str, Path], options: Sequence[object]) -> None:
    address, folder = home
    command = [sys.executable, "-m", "dragoman", "rollout", tasks, "--harness", plan.harness, "--gateway", address]
    command += ["--concurrency", plan.concurrency, "--time-limit", 120, *options]
    run(command, environment(folder))


def environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "DRAGOMAN_HOME": str(folder), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}


def engine_python() -> Path:
    from dragoman.cli.train import find_trainer

    return find_trainer()


def run(command: Sequence[object], env: dict[str, str] | None = None) -> None:
    """Run a command in the checkout, its output on ours. Raises ``CalledProcessError``."""
    root = Path(__file__).resolve().parents[2]
    subprocess.run([str(word) for word in command], env=env, cwd=root, check=True)


def wait_for(*started: tuple[str, Child]) -> None:
    """Until every address answers. Raises ``RuntimeError`` when a program has ended instead."""
    limit = time.monotonic() + 300
    for address, child in started:
        while True:
            if child.returncode() is not None:
                raise RuntimeError(f"what should answer at {address} has ended; its log: {child.log}")
            try:
                if httpx.get(f"{address}/health", timeout=5, trust_env=False).status_code < 500:
                    break
            except httpx.TransportError:
                pass
            if time.monotonic() > limit:
                raise TimeoutError(f"nothing answers at {address}")
            time.sleep(0.3)


def _stage(folder: Path, make: Any) -> Path:
    """Do a stage whose mark is not there; returns its folder."""
    if not (folder / MARK).exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        print(f"== {folder.name}", flush=True)
        make(folder)
        (folder / MARK).write_text("{}\n")
    return folder
