"""A row's harness, asked twice in one session and one episode."""

from dataclasses import replace
from pathlib import Path

from dragoman.cli.episode import connect
from dragoman.cli.run_plan import installed_harness
from dragoman.rollout.launch import Target, launch
from dragoman.rollout.process import run
from dragoman.store.records import EpisodeEnd
from scripts.harness_rows import Row
from scripts.harness_run import Ran
from scripts.turns_again import QUESTION, going_on


def ask_twice(row: Row, prompt: str, folder: Path, address: str) -> Ran:
    """Run the row's harness on ``prompt`` and then on ``QUESTION``, in the folder's ``work`` and ``home``.

    `dragoman run` opens an episode for each run, so this goes below it. The result is the second run's.
    """
    harness, place = installed_harness(row.harness)
    with connect(address) as client:
        opened = client.open_episode(task="e2e-harnesses")
        target = Target(address, opened.token, row.mode, folder / "state" / "certs", context_tokens=131072)
        first = launch(
            harness,
            target,
            installed=place,
            prompt=prompt,
            home=folder / "home",
            workdir=folder / "work",
            variant=row.variant or None,
        )
        result = run(first, timeout=row.time_limit)
        if result.exit_code == 0:
            second = replace(first, command=going_on(row, first.command), stdin=QUESTION)
            result = run(second, timeout=row.time_limit)
        end: EpisodeEnd = "completed" if result.exit_code is not None else "timed_out"
        client.end_episode(opened.id, end)
    for name in ("stdout", "stderr"):
        (folder / f"{name}.txt").write_text(getattr(result, name))
    return Ran(result.exit_code or 0, opened.id, end, result, (), in_diff=False)
