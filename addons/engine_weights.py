"""The engine's control routes, by which other weights are put into it (vLLM with ``VLLM_SERVER_DEV_MODE=1``).

Rules of this module: each function leaves the engine running, also when it fails; a failure is ``WeightsRefused`` with
what the engine said, and an engine that cannot be reached is ``Overloaded``, which is worth another try. What the
engine leaves undone after new weights was measured (vLLM 0.32): a reload from disk clears no cache and sets no label.
"""

import asyncio
from pathlib import PurePath

import httpx

from dragoman.addons.engine import BASE_VERSION, UNSET_LABEL, Engine
from dragoman.addons.errors import WeightsRefused
from dragoman.store.records import JsonObject

UPDATE_PATIENCE = 600.0
"""Seconds that one step may take: large weights come from a slow disk."""
READ_PATIENCE = 120.0
"""Seconds that a question may take: the engine answers between two steps, and a long prompt is one on a slow CPU."""


async def adapter_paths(engine: Engine) -> dict[str, str]:
    """The adapters that are loaded: name → folder. Raises ``Overloaded`` or ``EngineFailed``."""
    return dict((await engine.info()).adapters)


async def weight_version(engine: Engine) -> str:
    """The label of the engine's own weights. Raises ``Overloaded``, and ``WeightsRefused`` without control routes."""
    label = (await _ask(engine, "GET", "/weight_info")).get("weight_version")
    if not isinstance(label, str):
        raise WeightsRefused(f"the engine at {engine.base_url} does not say which weights it has: {label!r}")
    return BASE_VERSION if label == UNSET_LABEL else label


async def load_adapter(engine: Engine, name: str, path: str) -> None:
    """Load a LoRA adapter under a name that calls then ask for. One of that name from that folder is left as it is.

    One from another folder goes first: loading over it would keep cache blocks of the old weights. Raises
    ``Overloaded`` and ``WeightsRefused``.
    """
    there = (await adapter_paths(engine)).get(name)
    if there is not None and PurePath(there) == PurePath(path):
        return
    if there is not None:
        await _ask(engine, "POST", "/v1/unload_lora_adapter", {"lora_name": name})
    await _ask(engine, "POST", "/v1/load_lora_adapter", {"lora_name": name, "lora_path": path})


async def reload_weights(engine: Engine, path: str, version: str, *, before: str) -> None:
    """Put the weights in ``path`` in place of the engine's own, and label them ``version``.

    ``before``: the folder of those that it has; they are put back when it does not take the new ones, since some of
    those may be in place already. Replies that are being sampled are frozen meanwhile and go on with the new weights;
    the engine reports them as two spans. Raises ``Overloaded`` and ``WeightsRefused``; the engine goes on then too.
    """
    await _ask(engine, "POST", "/pause?mode=keep")
    try:
        try:
            await _reload(engine, path)
        except WeightsRefused as error:
            await _put_back(engine, before, error)
            raise
        await _ask(engine, "POST", "/update_weight_version", {"new_version": version})
    finally:
        # Whoever asked may be cancelled; an engine that stays paused would hold every harness for ever.
        await asyncio.shield(_ask(engine, "POST", "/resume"))


async def _reload(engine: Engine, path: str) -> None:
    await _ask(engine, "POST", "/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": path}})
    await _ask(engine, "POST", "/reset_prefix_cache")


async def _put_back(engine: Engine, before: str, why: WeightsRefused) -> None:
    try:
        await _reload(engine, before)
    except WeightsRefused as error:
        raise WeightsRefused(
            f"{why.message}; and the weights that it had before cannot be put back from {before!r}: {error.message}. "
            "Restart the engine: what it samples now may be of neither"
        ) from error


async def _ask(engine: Engine, method: str, path: str, body: JsonObject | None = None) -> JsonObject:
    patience = READ_PATIENCE if method == "GET" else UPDATE_PATIENCE
    response = await engine.control(method, path, body, patience=patience)
    if response.status_code == 200:
        return _json(response)
    what = f"the engine at {engine.base_url} answered {response.status_code} to {path.partition('?')[0]}"
    raise WeightsRefused(f"{what}: {_said(response)}{_remedy(response.status_code, path)}")


def _remedy(status: int, path: str) -> str:
    if status not in (404, 405):
        return ""
    if path.endswith("_lora_adapter"):
        return "; start vLLM with --enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 (`dragoman engine --lora`)"
    return "; start vLLM with VLLM_SERVER_DEV_MODE=1 (`dragoman engine` does)"


def _json(response: httpx.Response) -> JsonObject:
    try:
        value = response.json()
    except ValueError:  # some routes answer with a sentence, or with nothing
        return {}
    return value if isinstance(value, dict) else {}


def _said(response: httpx.Response) -> str:
    error = _json(response).get("error")
    message = error.get("message") if isinstance(error, dict) else error
    return str(message or response.text[:300] or "nothing").strip()
