"""``dragoman show``: one episode with its calls, or one call, and what it holds."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dragoman.cli.episodes import Store, age, plain
from dragoman.cli.output import Failure, console, print_json, say

if TYPE_CHECKING:
    from rich.table import Table

    from dragoman.store.records import ArtefactInfo, CallInfo, EpisodeInfo, JsonObject


def show(
    what: Annotated[str, typer.Argument(metavar="EPISODE|CALL", help="Id of an episode or a call, or its beginning.")],
    tokens: Annotated[bool, typer.Option("--tokens", help="The sampled ids with their log-probabilities.")] = False,
    messages: Annotated[bool, typer.Option("--messages", help="The messages and the reply as text.")] = False,
    tokenizer: Annotated[
        Path | None, typer.Option(help="A model folder; `--tokens` then shows the text of each id.")
    ] = None,
    artefact: Annotated[
        str | None, typer.Option(metavar="NAME", help="Write this artefact of the episode to stdout, and nothing else.")
    ] = None,
    store: Store = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """Show an episode with its calls in order and what its run left behind, or one call.

    \b
        dragoman show k3v9
        dragoman show k3v9 --artefact changes.diff
        dragoman show k3v9 --messages
        dragoman show 0f3kq --tokens --tokenizer ./my-model
    """
    from dataclasses import asdict

    from dragoman.cli.lookup import find_id, reading
    from dragoman.store.artefacts import list_artefacts
    from dragoman.store.calls import read_calls
    from dragoman.store.episodes import get_episode

    if artefact is not None:
        print_artefact(what, artefact, store)
        return
    decode = load_decoder(tokenizer) if tokenizer is not None else None
    with reading(store) as (session, url):
        episode_id, call_id = find_id(session, what)
        episode = get_episode(session, episode_id)
        every = read_calls(session, episode_id)
        left = list_artefacts(session, episode_id)
    calls = [call for call in every if call_id in (None, call.arrival.id)]
    if as_json:
        shown = episode_json(episode, calls, url, tokens=tokens, messages=messages)
        print_json(shown | {"traces": traces_fact(every), "artefacts": [asdict(info) for info in left]})
        return
    print_episode(episode, calls, url, traces_fact(every))
    for line in artefact_lines(left):
        print(line)
    from dragoman.cli.call_view import message_lines, token_lines

    for call in calls:
        if messages or tokens:
            print(f"\n── call {call.arrival.id}")
        for line in message_lines(call) if messages else []:
            print(line)
        for line in token_lines(call, decode) if tokens else []:
            print(line)


def print_artefact(what: str, name: str, store: str | None) -> None:
    """Its bytes as they are. Raises ``Failure`` when the episode has none of that name."""
    import sys

    from dragoman.cli.lookup import find_id, reading
    from dragoman.store.artefacts import read_artefact

    with reading(store) as (session, _):
        found = read_artefact(session, find_id(session, what)[0], name)
    if found.omitted:
        say(f"{name} was longer: {found.omitted:,} bytes are left out of it")
    sys.stdout.buffer.write(found.data)
    sys.stdout.flush()


def artefact_lines(left: "Sequence[ArtefactInfo]") -> list[str]:
    """What a run left behind, one line each, after an empty one."""
    lines = ["", "artefacts (print one with --artefact NAME)"] if left else []
    for info in left:
        cut = f", {info.omitted:,} more left out" if info.omitted else ""
        lines.append(f"  {info.name:<14} {info.size:,} bytes{cut}")
    return lines


def load_decoder(folder: Path) -> Callable[[int], str]:
    """Token id → text by a model folder's tokenizer. Raises ``Failure`` when there is none."""
    import os

    os.environ["HF_HUB_OFFLINE"] = "1"
    from transformers import AutoTokenizer

    if not folder.is_dir():
        raise Failure(f"--tokenizer {folder} is no folder; `dragoman doctor` names that of the engine's model")
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder)
    except (OSError, ValueError) as error:
        raise Failure(f"--tokenizer {folder} holds no tokenizer: {error}") from error

    def decode(token: int) -> str:
        return str(tokenizer.decode([token]))

    return decode


def episode_json(
    episode: "EpisodeInfo", calls: "Sequence[CallInfo]", url: str, *, tokens: bool, messages: bool
) -> "JsonObject":
    from dataclasses import asdict

    from dragoman.cli.call_view import call_json, mean_logprob, policy_versions, token_counts

    value: JsonObject = asdict(episode)
    prompt_tokens, completion_tokens = token_counts(calls)
    return value | {
        "store": url,
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "mean_logprob": mean_logprob(calls),
        "policy_versions": policy_versions(calls),
        "calls": [call_json(call, tokens=tokens, messages=messages) for call in calls],
    }


def traces_fact(calls: "Sequence[CallInfo]") -> str:
    """How many traces an episode's calls give, by kind, or why none can be made of them."""
    from collections import Counter

    from dragoman.store.branches import find_branches
    from dragoman.store.call_facts import facts_of

    try:
        found = find_branches([facts_of(call) for call in calls])
    except ValueError as error:
        return f"none can be built: {error}"
    kinds = Counter(branch.kind for branch in found.branches)
    return ", ".join(f"{number} {kind}" for kind, number in kinds.items()) or "none"


def print_episode(episode: "EpisodeInfo", calls: "Sequence[CallInfo]", url: str, traces: str) -> None:
    """The episode's facts, its calls as a table, and what was wrong with those that gave nothing to train on."""
    from dragoman.cli.call_view import trouble

    out = console()
    for name, value in episode_facts(episode, calls, url, traces, time.time()).items():
        out.print(f"[bold]{name:<13}[/bold] {plain(value)}")
    if not calls:
        say("no calls yet")
        return
    out.print()
    out.print(calls_table(calls))
    for number, call in enumerate(calls, 1):
        if said := trouble(call):
            out.print(f"[yellow]call {number}[/yellow] {plain(said)}")


def episode_facts(
    episode: "EpisodeInfo", calls: "Sequence[CallInfo]", url: str, traces: str, now: float
) -> dict[str, str]:
    from dragoman.cli.call_view import NONE, mean_logprob, policy_versions, token_counts

    spec = episode.spec
    prompt_tokens, completion_tokens = token_counts(calls)
    mean = mean_logprob(calls)
    end = episode.end or ("expired" if episode.expires_at < now else "open")
    observed = sum(call.outcome is not None and call.outcome.status == "observed" for call in calls)
    sampling = f"{spec.profile}, temperature {spec.temperature:g}" if spec.profile == "train" else spec.profile
    return {
        "episode": episode.id,
        "task": spec.task or "none (ad hoc)",
        "group": spec.group or NONE,
        "sampling": sampling,
        "opened": f"{age(now - episode.opened_at)} ago",
        "end": f"{end}: {episode.end_reason}" if episode.end_reason else end,
        "reward": NONE if episode.reward is None else f"{episode.reward:g}",
        "calls": f"{len(calls)}, {observed} of them answered by the real provider" if observed else str(len(calls)),
        "tokens": f"{prompt_tokens:,} in, {completion_tokens:,} out",
        "traces": traces,
        "mean logprob": NONE if mean is None else f"{mean:.4f}",
        "policy": ", ".join(policy_versions(calls)) or NONE,
        "database": url,
    }


def calls_table(calls: "Sequence[CallInfo]") -> "Table":
    from rich.table import Table

    from dragoman.cli.call_view import call_facts

    rows = [call_facts(call) for call in calls]
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("#", justify="right")
    for name in rows[0]:
        right = name in ("in", "out", "logprob", "first", "total")
        table.add_column(name, justify="right" if right else "left", overflow="fold")
    for number, facts in enumerate(rows, 1):
        table.add_row(str(number), *(plain(value) for value in facts.values()))
    return table
