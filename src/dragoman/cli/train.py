"""``dragoman train``: weights from stored episodes, by GRPO or SFT.

Rules of this module: everything that needs torch is in ``dragoman.trainer``; where this environment has no TRL, the
command becomes (``exec``) the same command in the engine environment. So it works from both, and under
``accelerate launch -m dragoman train …``. It imports no mitmproxy.
"""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal, NoReturn

import typer

from dragoman.cli.output import Failure, say

_HAS_TRL = "import importlib.util, sys; sys.exit(importlib.util.find_spec('trl') is None)"
Kind = Literal["grpo", "sft"]
CONTEXT = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}

app = typer.Typer(help="Train on stored episodes.", no_args_is_help=True)

Config = Annotated[Path | None, typer.Argument(metavar="CONFIG.yaml", show_default=False)]
Help = Annotated[bool, typer.Option("--help", "-h", help="List every option.")]


@app.command(context_settings=CONTEXT)
def grpo(context: typer.Context, config: Config = None, help_: Help = False) -> None:
    """GRPO on complete groups, as they come, pushing new weights to the engine.

    \b
    CONFIG.yaml holds TRL's names and ours; --help lists them all, docs/training.md explains ours:
        dragoman train grpo run.yaml
        dragoman train grpo run.yaml --learning_rate 2e-6
        accelerate launch --num_processes 8 -m dragoman train grpo run.yaml
    """
    _train("grpo", config, context.args, help_)


@app.command(context_settings=CONTEXT)
def sft(context: typer.Context, config: Config = None, help_: Help = False) -> None:
    """Supervised fine-tuning on accepted episodes, on the very tokens that were sampled.

    \b
        dragoman train sft sft.yaml
        dragoman train sft sft.yaml --min_reward 0.5 --num_train_epochs 2
    """
    _train("sft", config, context.args, help_)


def _train(kind: Kind, config: Path | None, overrides: list[str], wants_help: bool) -> None:
    if find_spec("trl") is None:
        _go_to_engine()
    # A model or a tokenizer is a folder here; TRL would ask the hub about itself.
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from dragoman.store.errors import StoreError
    from dragoman.trainer.config import ConfigError, help_text, read_grpo, read_sft

    if wants_help:
        print(help_text(kind))
        return
    if config is None:
        raise Failure(f"name the configuration: dragoman train {kind} CONFIG.yaml (--help lists what it may hold)")
    try:
        if kind == "grpo":
            from dragoman.trainer.checkpoints import RunInUse
            from dragoman.trainer.grpo import NotFinite
            from dragoman.trainer.run import account_lines, train_grpo

            try:
                totals = train_grpo(*read_grpo(config, overrides))
            except (RunInUse, NotFinite) as error:
                raise Failure(str(error)) from error
            for line in [] if totals is None else account_lines(totals):
                say(line)
        else:
            from dragoman.trainer.sft import train_sft

            train_sft(*read_sft(config, overrides))
    except (ConfigError, StoreError) as error:
        raise Failure(str(error)) from error


def _go_to_engine() -> NoReturn:
    """Become the same command in the environment that has TRL."""
    python = find_trainer()
    sys.stdout.flush()
    os.execv(python, [str(python), "-m", "dragoman", *sys.argv[1:]])


def find_trainer() -> Path:
    """The Python that has TRL: ``DRAGOMAN_ENGINE_PYTHON``, else that of a ``.venv-engine`` in the working folder, the
    checkout or beside this environment.

    Raises ``Failure`` when none does.
    """
    import dragoman

    checkout = Path(dragoman.__file__).resolve().parents[2]
    folders = (Path.cwd(), checkout, Path(sys.prefix).parent)
    candidates = [folder / ".venv-engine" / "bin" / "python" for folder in folders]
    if named := os.environ.get("DRAGOMAN_ENGINE_PYTHON"):
        candidates.insert(0, Path(named))
    for python in candidates:
        if python.exists() and subprocess.run([python, "-c", _HAS_TRL], capture_output=True).returncode == 0:
            return python
    raise Failure(
        "no environment with trl: run `make setup`, which makes .venv-engine, or install dragoman[train] in a Python "
        "and name it in DRAGOMAN_ENGINE_PYTHON"
    )
