"""Full weights straight from a trainer's GPU into an engine's, over NCCL, by TRL's own client of vLLM.

Rules of this module: the same order as a reload from disk: pause, update, clear caches, label, resume, and the policy's
row says how it went; the gateways then find the engine with the right label. The folder that the row names must hold
the same weights, for an engine that is restarted. Needs CUDA, vLLM in this environment, and a server started with
``--weight-transfer-config '{"backend": "nccl"}'``.

This was written after TRL 1.16's client and never run: no machine with a GPU was at hand.
"""

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from dragoman.store import policies
from dragoman.store.database import Database
from dragoman.store.policies import PolicyInfo, PolicyKind
from dragoman.trainer.weights import Published, add_row, free_folder, save_policy


class Transfer:
    """A connection to one engine that lives as long as the trainer. Rank 0 only."""

    def __init__(self, engine: str, device: Any) -> None:
        """``engine``: its address, word for word as the gateways know it. ``device``: the trainer's CUDA device.

        Raises ``RuntimeError`` or ``ImportError`` of TRL's when engine or environment cannot do it.
        """
        from trl.generation.vllm_client import VLLMClient

        self.engine = engine.rstrip("/")
        self._client = VLLMClient(base_url=self.engine, connection_timeout=60)
        self._client.init_communicator(device)

    def publish(
        self,
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
        """As ``weights.publish``, but the engine gets the weights from this process; the folder is for its restart.

        A transfer that fails is returned, not raised. The engine may then hold parts of both: restart it, and its
        gateway gives it the version before from its folder. Raises ``ValueError`` for an adapter, and for weights that
        are sharded over ranks.
        """
        if kind != "full":
            raise ValueError(
                "an adapter is loaded from its folder, not over NCCL; leave push_nccl out, or say push_kind full"
            )
        if state_dict is not None:
            raise ValueError("weights that are sharded over ranks cannot be sent over NCCL; leave push_nccl out")
        path = free_folder(folder.absolute() / f"step-{step}")
        save_policy(model, processing_class, path, kind)
        with database.session() as session:
            # Claimed with the row itself, or a gateway would begin to load it from the folder.
            policy = add_row(session, path=path, kind=kind, run=run, step=step, metrics=metrics)
            policies.claim_load(session, policy.number, self.engine, now=time.time())
        failure: str | None = None
        with self._claimed(database, policy):
            try:
                self._send(model, policy.version)
            except Exception as error:
                failure = f"the transfer failed: {error}"
        with database.session() as session:
            status: policies.LoadStatus = "serving" if failure is None else "failed"
            policies.finish_load(session, policy.number, self.engine, status, reason=failure, now=time.time())
        return Published(policy.version, policy.number, failure is None, failure)

    def _send(self, model: Any, version: str) -> None:
        with httpx.Client(base_url=self.engine, timeout=600, trust_env=False) as http:
            http.post("/pause?mode=keep").raise_for_status()
            try:
                self._client.update_model_params(model)
                self._client.reset_prefix_cache()
                http.post("/update_weight_version", json={"new_version": version}).raise_for_status()
            finally:
                http.post("/resume").raise_for_status()

    @contextmanager
    def _claimed(self, database: Database, policy: PolicyInfo) -> Iterator[None]:
        """Keep the claim on the load alive meanwhile."""
        done = threading.Event()

        def beat() -> None:
            while not done.wait(policies.STALE_LOAD / 4):
                with database.session() as session:
                    policies.touch_load(session, policy.number, self.engine, now=time.time())

        thread = threading.Thread(target=beat, name="weight transfer", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()
