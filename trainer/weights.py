"""Weights on their way back: a trained model becomes a folder and a policy in the store, and engines take it up.

Rules of this module: the trainer never speaks to an engine here (``weight_transfer`` does, on GPUs). It writes the
folder whole or not at all, adds the policy's row, and waits for what the gateways say of it. A push that fails leaves
the version before serving, and training goes on: that is for the caller to log.

The folder must lie where the engine's machine sees it under the same path. Needs torch only when a model is saved.
"""

import copy
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy.orm import Session

from dragoman.store import policies
from dragoman.store.database import Database
from dragoman.store.policies import LoadInfo, PolicyInfo, PolicyKind

POLL = 0.1
"""Seconds between looks at what the gateways say."""


@dataclass(frozen=True, slots=True)
class Published:
    version: str
    number: int
    serving: bool
    """Whether every engine that has taken notice serves it. A policy that is not yet serving may still become so."""
    reason: str | None
    """Why it does not; ``None``: it does."""


def publish(
    database: Database,
    model: Any,
    processing_class: Any,
    *,
    folder: Path,
    kind: PolicyKind,
    run: str,
    step: int,
    metrics: Mapping[str, float],
    timeout: float,
    state_dict: Mapping[str, Any] | None = None,
) -> Published:
    """Save ``model`` in ``folder/step-<step>`` and have it served as the next version. A folder that is there, of an
    earlier start, stays as it is, since an older version may name it; the new one is then ``step-<step>-2``, ….

    ``model``: unwrapped, of transformers or peft; ``processing_class``: its tokenizer. ``state_dict``: its weights
    where they are sharded over ranks (``accelerator.get_state_dict``); ``None``: they are in the model. ``timeout``:
    seconds to wait for gateways. Raises ``ValueError`` for weights that an engine cannot take, ``OSError``,
    ``StoreUnavailable``.
    """
    path = free_folder(folder.absolute() / f"step-{step}")
    save_policy(model, processing_class, path, kind, state_dict=state_dict)
    policy = add(database, path=path, kind=kind, run=run, step=step, metrics=metrics)
    return wait_served(database, policy, timeout=timeout)


def save_policy(
    model: Any, processing_class: Any, path: Path, kind: PolicyKind, *, state_dict: Mapping[str, Any] | None = None
) -> None:
    """Write what an engine needs into the folder ``path``, whole or not at all. One that is there is replaced.

    ``lora``: the adapter alone. ``full``: all weights, with an adapter merged in. Raises as ``publish`` does.
    """
    adapter = getattr(model, "peft_config", None)
    if kind == "lora":
        _check_adapter(adapter)
    else:
        _check_head(model)
    partial = path.with_name(f".{path.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    if kind == "full" and adapter is not None:
        # Merging and unmerging in place would change the weights that are being trained by rounding.
        model, state_dict = copy.deepcopy(model).cpu().merge_and_unload(), None
    model.save_pretrained(partial, state_dict=None if state_dict is None else dict(state_dict))
    if kind == "full":
        processing_class.save_pretrained(partial)
    shutil.rmtree(path, ignore_errors=True)
    partial.rename(path)


def add(
    database: Database, *, path: Path, kind: PolicyKind, run: str | None, step: int | None, metrics: Mapping[str, float]
) -> PolicyInfo:
    """Add the policy's row; from then on gateways take it up. Raises ``StoreUnavailable``."""
    with database.session() as session:
        return add_row(session, path=path, kind=kind, run=run, step=step, metrics=metrics)


def add_row(
    session: Session, *, path: Path, kind: PolicyKind, run: str | None, step: int | None, metrics: Mapping[str, float]
) -> PolicyInfo:
    """As ``add``, in a transaction of the caller's."""
    newest = policies.list_policies(session, limit=1)
    parent = newest[0][0].version if newest else policies.BASE
    return policies.add_policy(
        session, kind=kind, path=path, parent=parent, run=run, step=step, metrics=metrics, now=time.time()
    )


def wait_served(
    database: Database, policy: PolicyInfo, *, timeout: float, sleep: Callable[[float], None] = time.sleep
) -> Published:
    """Wait until the gateways have said what became of a policy, at most ``timeout`` seconds."""
    limit = time.monotonic() + timeout
    while True:
        with database.reading() as session:
            loads = policies.list_loads(session, policy.number)
        if loads and all(load.status != "loading" for load in loads):
            return _published(policy, loads)
        if time.monotonic() >= limit:
            waiting = ", ".join(load.engine for load in loads) or None
            reason = (
                f"{waiting} was still loading it after {timeout:.0f} s"
                if waiting
                else f"no gateway has taken it up within {timeout:.0f} s; does `dragoman serve` run on this store?"
            )
            return Published(policy.version, policy.number, False, reason)
        sleep(POLL)


def _published(policy: PolicyInfo, loads: tuple[LoadInfo, ...]) -> Published:
    failed = [f"{load.engine}: {load.reason}" for load in loads if load.status == "failed"]
    return Published(policy.version, policy.number, not failed, "; ".join(failed) or None)


def free_folder(path: Path) -> Path:
    """``path``, or the first of ``path-2``, ``path-3``, … that is not there."""
    number, found = 1, path
    while found.exists():
        number += 1
        found = path.with_name(f"{path.name}-{number}")
    return found


def _check_adapter(adapters: Mapping[str, Any] | None) -> None:
    if not adapters:
        raise ValueError("the model has no adapter to push; train with LoRA, or push the full weights")
    for config in adapters.values():
        if saved := getattr(config, "modules_to_save", None):
            raise ValueError(
                f"the adapter trains whole modules ({', '.join(saved)}), which an engine does not take with an "
                "adapter; leave modules_to_save out, or push the full weights"
            )


def _check_head(model: Any) -> None:
    if not getattr(model.config, "tie_word_embeddings", False):
        return
    import torch

    if not torch.cuda.is_available():
        raise ValueError(
            "the model shares its embeddings with its output head, and vLLM on a CPU keeps the old head when it "
            "reloads such a model; untie them in the model that the engine is started with, or push an adapter"
        )
