"""``dragoman eval``: how well the agent does, by harness, policy version and set of tasks."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, get_args

import typer

from dragoman.cli.episodes import Store
from dragoman.cli.output import Failure, say

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dragoman.monitor.episode_facts import EpisodeFacts
    from dragoman.monitor.evals import Dimension

Format = Literal["table", "json", "markdown", "csv"]


def evaluate(
    run: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only of this rollout; * and ? stand for any.")
    ] = None,
    task: Annotated[
        list[str] | None, typer.Option(metavar="GLOB", help="Only tasks of such names; repeatable.")
    ] = None,
    split: Annotated[str | None, typer.Option(help="Only tasks of this split.")] = None,
    harness: Annotated[str | None, typer.Option(help="Only of this harness.")] = None,
    by: Annotated[
        str, typer.Option(metavar="LIST", help="What makes a row, of harness, version, split, task and run.")
    ] = "harness,version,split",
    k: Annotated[str, typer.Option(metavar="LIST", help="The k of each pass@k.")] = "1",
    versions: Annotated[
        tuple[str, str] | None,
        typer.Option("--compare", metavar="V1 V2", help="Compare two policy versions task by task, too."),
    ] = None,
    pass_at: Annotated[float, typer.Option(metavar="REWARD", help="An episode passes with this reward or more.")] = 1.0,
    seed: Annotated[int, typer.Option(min=0, help="Of the bootstrapped intervals.")] = 0,
    format_: Annotated[Format, typer.Option("--format", help="csv with --compare: a line for each task.")] = "table",
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Where to write it (default: stdout).")] = None,
    store: Store = None,
) -> None:
    """Table pass rates, rewards, turns, tokens, tool errors and time of stored episodes, with 95 % intervals.

    \b
    docs/eval.md says what is counted and how:
        dragoman eval --run tasks-1a2b3c4d --k 1,4
        dragoman eval --split test --by version --compare base policy-v12
        dragoman eval --task 'swe-*' --format markdown --out results.md
    """
    from dragoman.cli import eval_view
    from dragoman.cli.lookup import reading
    from dragoman.monitor.episode_facts import Chosen, read_episodes
    from dragoman.monitor.evals import compare, table

    dimensions, ks = read_by(by), read_ks(k)
    with reading(store) as (session, url):
        try:
            episodes = read_episodes(session, Chosen(run, tuple(task or ()), split, harness))
        except ValueError as error:
            raise Failure(f"{error}; `dragoman db check` says more") from error
    if not episodes:
        raise Failure(f"no episode in {url} is of such a run, task, split and harness; `dragoman episodes` lists them")
    rows = table(episodes, by=dimensions, ks=ks, pass_at=pass_at, seed=seed)
    compared = None
    if versions is not None:
        check_versions(episodes, versions)
        compared = compare(episodes, *versions, by=dimensions, pass_at=pass_at, seed=seed)
    text = {
        "table": eval_view.as_table,
        "json": eval_view.as_json,
        "markdown": eval_view.as_markdown,
        "csv": eval_view.as_csv,
    }[format_](rows, compared, pass_at)
    if out is None:
        print(text, end="")
        return
    try:
        out.write_text(text)
    except OSError as error:
        raise Failure(f"--out {out} cannot be written: {error.strerror}") from error
    say(f"{len(episodes):,} episodes in {len(rows):,} rows written to {out}")


def read_by(text: str) -> "tuple[Dimension, ...]":
    """The dimensions in ``--by``, each once; none at all makes one row of everything."""
    from dragoman.monitor.evals import Dimension

    known: dict[str, Dimension] = {name: name for name in get_args(Dimension)}
    names = dict.fromkeys(name.strip() for name in text.split(",") if name.strip())
    if strange := [name for name in names if name not in known]:
        raise Failure(f"--by {strange[0]}: episodes have no such property; it is one of {', '.join(known)}")
    return tuple(known[name] for name in names)


def read_ks(text: str) -> tuple[int, ...]:
    """The numbers in ``--k``; 1 is always among them."""
    try:
        ks = {int(one) for one in text.split(",") if one.strip()} | {1}
    except ValueError as error:
        raise Failure(f"--k {text}: give whole numbers, as in 1,4") from error
    if min(ks) < 1:
        raise Failure(f"--k {text}: k is 1 or more")
    return tuple(sorted(ks))


def check_versions(episodes: "Sequence[EpisodeFacts]", versions: tuple[str, str]) -> None:
    """Raises ``Failure`` for versions that cannot be compared."""
    from dragoman.monitor.episode_facts import version_order

    known = {episode.version for episode in episodes if episode.version is not None}
    if versions[0] == versions[1]:
        raise Failure(f"--compare needs two versions, not {versions[0]} twice")
    for version in versions:
        if version not in known:
            there = ", ".join(sorted(known, key=version_order)) or "none"
            raise Failure(f"--compare: no episode here was sampled by {version} alone; there is: {there}")
