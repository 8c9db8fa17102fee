"""Around the steps: the line of progress, and pushes that fail."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

from dragoman.store.errors import StoreUnavailable
from dragoman.trainer.callbacks import PushCallback, progress_line
from dragoman.trainer.weights import Published


def test_the_line_shows_what_there_is() -> None:
    logs = {"loss": "0.5", "reward": 0.25, "policy_lag": 1.0, "tokens_per_second": 1234.5, "groups/waiting": 3.0}
    logs |= {"kl": 0.001, "cispo_clip_ratio": 0.02, "logp_difference": 0.0123, "failed_steps": 0.0}
    assert progress_line(3, 40, logs) == (
        "[bold]step 3[/]/40 · reward 0.250 · lag 1.0 · tokens/s 1,234 · waiting 3 · loss 0.5000 · KL 0.0010 · "
        "clipped 2.0% · |Δlogp| 0.0123"
    )
    assert progress_line(3, 1_000_000, {"failed_steps": 1.0}) == "[bold]step 3[/] · failed 1"


class Pushes:
    """Stands for ``publish``."""

    def __init__(self, answer: Published | Exception) -> None:
        self.answer = answer
        self.steps: list[int] = []

    def __call__(self, *_: Any, step: int, **__: Any) -> Published:
        self.steps.append(step)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (Published("policy-v1", 1, True, None), "step 2: policy-v1 is served"),
        (Published("policy-v1", 1, False, "no slot"), "step 2: policy-v1 is not served: no slot"),
        (StoreUnavailable("away"), "step 2: the weights were not published: away"),
        (OSError("disk full"), "step 2: the weights were not published: disk full"),
    ],
)
def test_a_push_is_said_and_a_failed_one_too(answer: Any, says: str, tmp_path: Path) -> None:
    said: list[str] = []
    push = Pushes(answer)
    database: Any = object()
    callback = PushCallback(
        database, every=2, kind="lora", folder=tmp_path, run="r", timeout=1, say=said.append, push=push
    )
    accelerator = SimpleNamespace(distributed_type="NO", unwrap_model=lambda model: model)
    callback.trainer = SimpleNamespace(
        accelerator=accelerator, model=None, processing_class=None, last_metrics={"reward": 1.0}
    )
    for step in (1, 2, 3):
        callback.on_step_end(None, SimpleNamespace(global_step=step), None)
    assert push.steps == [2]
    assert said == [says]
    callback.trainer.last_metrics = {}
    callback.on_step_end(None, SimpleNamespace(global_step=4), None)
    assert push.steps == [2], "a step that failed has nothing to push"
