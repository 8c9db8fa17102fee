"""A trainer that kills itself with SIGKILL at a named moment: ``CONFIG MOMENT STEP [--option value]…``.

Moments: ``middle`` (of the step, between two micro-batches), ``marker`` (its checkpoint is written, and not its
marker), ``consume`` (the marker is written, and the store knows nothing of it), ``never``.
"""

import os
import signal
import sys
from pathlib import Path
from typing import Any

from dragoman.trainer import source as source_module
from dragoman.trainer.checkpoints import write_marker
from dragoman.trainer.config import read_grpo
from dragoman.trainer.run import train_grpo
from dragoman.trainer.source import GroupSource


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def install(moment: str, step: int) -> None:
    steps_taken = [0]
    take, keep = GroupSource.take, GroupSource.keep
    consume = GroupSource._consume_pending

    def counting_take(self: GroupSource) -> Any:
        taken = take(self)
        steps_taken[0] += not isinstance(taken, str)
        return taken

    def dying_keep(self: GroupSource) -> None:
        if moment == "middle" and steps_taken[0] == step:
            die()
        keep(self)

    def dying_marker(folder: Path, trained: Any) -> None:
        if moment == "marker" and folder.name == f"checkpoint-{step}":
            die()
        write_marker(folder, trained)

    def dying_consume(self: GroupSource) -> None:
        if moment == "consume" and any(group.step == step for group in self._pending):
            die()
        consume(self)

    GroupSource.take, GroupSource.keep = counting_take, dying_keep  # type: ignore[method-assign]
    GroupSource._consume_pending = dying_consume  # type: ignore[method-assign]
    vars(source_module)["write_marker"] = dying_marker


if __name__ == "__main__":
    install(sys.argv[2], int(sys.argv[3]))
    train_grpo(*read_grpo(Path(sys.argv[1]), sys.argv[4:]))
