"""``dragoman engine``: start vLLM as Dragoman needs it, and stop all of it again."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dragoman.cli.output import Failure, say, step

if TYPE_CHECKING:
    from dragoman.cli.engine_process import EngineOptions, EnginePython
    from dragoman.cli.processes import Child

CONTEXT = {"allow_extra_args": True}


def engine(
    context: typer.Context,
    model: Annotated[
        str, typer.Option(help="A folder, a name, or one of the small test models `tiny` and `smollm2`.")
    ] = "smollm2",
    port: Annotated[int, typer.Option(help="Port to listen on.")] = 8000,
    host: Annotated[
        str, typer.Option(help="Address to listen on. The engine asks for no credentials: keep it on loopback.")
    ] = "127.0.0.1",
    max_model_len: Annotated[
        int | None, typer.Option(help="Longest prompt and reply together, in tokens (default: the model's own).")
    ] = None,
    dtype: Annotated[str | None, typer.Option(help="Number type of the weights (default on CPU: float32).")] = None,
    lora: Annotated[
        bool, typer.Option("--lora", help="Take LoRA adapters while running, so that a trainer can push them.")
    ] = False,
    max_lora_rank: Annotated[int, typer.Option(help="With --lora: the largest rank of an adapter.")] = 64,
    max_loras: Annotated[
        int, typer.Option(help="With --lora: versions that sample at once; at least the trainer's allowed lag + 2.")
    ] = 4,
    python: Annotated[
        Path | None, typer.Option(help="The Python that has vllm (default: .venv-engine, else this one).")
    ] = None,
    timeout: Annotated[float, typer.Option(help="Seconds until a start that is not ready counts as failed.")] = 900,
) -> None:
    """Start vLLM with the flags that exact recording needs, and wait until it answers. Ctrl-C stops it.

    Arguments after `--` go to vLLM as they are.

    \b
        dragoman engine --model smollm2
        dragoman engine --model ./my-model --port 8001 --lora -- --max-num-seqs 64
    """
    from dragoman.cli.engine_process import EngineOptions, find_python
    from dragoman.signals import terminable

    found = find_python(python)
    with terminable():
        options = EngineOptions(
            model=resolve_model(model, found),
            host=host,
            port=port,
            dtype=dtype,
            max_model_len=max_model_len,
            max_loras=max_loras if lora else 0,
            max_lora_rank=max_lora_rank,
            extra=tuple(context.args),
        )
        _serve(found, options, timeout)


def _serve(python: "EnginePython", options: "EngineOptions", timeout: float) -> None:
    import os

    from dragoman.cli.engine_process import engine_command, engine_environment
    from dragoman.cli.processes import running, why_no_listening
    from dragoman.home import state_folder

    if why := why_no_listening(options.host, options.port):
        raise Failure(f"cannot listen on {options.host} port {options.port}: {why}; choose another --port")
    log = state_folder() / "logs" / f"engine-{options.port}.log"
    environment = engine_environment(python, options.model, os.environ)
    with running(engine_command(python, options), environment, log) as child:
        bring_up(child, options, timeout)
        say(f"engine ready at http://{options.host}:{options.port} with {options.model}; log: {log}; Ctrl-C stops it")
        try:
            code = child.process.wait()
        except KeyboardInterrupt:
            say("stopping the engine")
            return
        raise Failure(f"vLLM exited with {code}\n" + "\n".join(f"  {line}" for line in child.last_lines(15)))


def bring_up(child: "Child", options: "EngineOptions", timeout: float) -> None:
    """Wait until a started engine is ready and warm, with a progress line. Raises ``Failure``."""
    from dragoman.cli.engine_process import wait_ready, warm_up

    address = f"http://{options.host}:{options.port}"
    name = Path(options.model).name
    with step(f"starting vLLM with {name}") as progress:
        wait_ready(child, address, timeout, progress.note)
    with step("warming up"):
        warm_up(address)


def resolve_model(model: str, python: "EnginePython") -> str:
    """What to give vLLM for ``model``: test models are built in the cache folder on first use. Raises ``Failure``."""
    import subprocess

    from dragoman.home import cache_folder

    if model not in ("tiny", "smollm2"):
        if "/" in model and model[0] in "./~" and not Path(model).expanduser().is_dir():
            raise Failure(f"there is no model folder {model!r}")
        return str(Path(model).expanduser().resolve()) if Path(model).expanduser().is_dir() else model
    folder = cache_folder() / "models" / model
    # It is quick when the model is there, and makes an outdated one anew.
    with step(f"test model {model} in {folder}"):
        command = [str(python.path), "-m", "dragoman.trainer.tiny_model", model, str(folder)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise Failure(f"the test model {model} could not be made:\n{(done.stdout + done.stderr)[-2000:].rstrip()}")
    return str(folder)
