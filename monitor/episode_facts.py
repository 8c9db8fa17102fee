"""What one episode comes to in an evaluation: whose it was, its reward, and the sums of its calls.

Rules of this module: reads only, and columns, not objects: one query for the episodes, and two for each ``CHUNK`` of
them. What the facts mean for a rate is decided in ``evals``.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, cast

from sqlalchemy import Table, Text, select
from sqlalchemy import cast as sql_cast
from sqlalchemy.orm import Session

from dragoman.monitor.tool_errors import NO_ERRORS, ToolErrors, find_errors, tool_names
from dragoman.store.branches import TRAINED_KINDS
from dragoman.store.call_facts import CallFacts, read_facts
from dragoman.store.calls import CHUNK
from dragoman.store.models import Call, Episode, Group, StoredBlob, Task, table_of
from dragoman.store.packing import unpack_text
from dragoman.store.policies import version_number
from dragoman.store.records import EpisodeEnd, JsonObject

CALLS: Table = table_of(Call)
BLOBS: Table = table_of(StoredBlob)


@dataclass(frozen=True, slots=True)
class Chosen:
    """Which episodes are meant. ``None`` and empty: all."""

    run: str | None = None
    """Pattern (``*``, ``?``) of the run's name."""
    tasks: tuple[str, ...] = ()
    """Patterns of task names, one of which must fit."""
    split: str | None = None
    harness: str | None = None


@dataclass(frozen=True, slots=True)
class EpisodeFacts:
    id: str
    task: str | None
    """``None``: an episode without a task."""
    run: str | None
    """The rollout that it is of."""
    split: str | None
    """The split of its task, as the rollout stored it."""
    harness: str | None
    """As the launcher named it, else as its calls did."""
    version: str | None
    """Policy version that sampled its calls: ``policy-v3``, or ``policy-v3..policy-v5`` where several did. ``None``:
    nothing was sampled, or it is not known by what."""
    end: EpisodeEnd | None
    """``None``: it is still open."""
    reward: float | None
    seconds: float | None
    """From its opening to its end."""
    turns: int = 0
    """Answered calls of the agent and its sub-agents; one that was given the reply of another is none."""
    prompt_tokens: int = 0
    """Of all calls; a token that is sent again counts again."""
    completion_tokens: int = 0
    tools: ToolErrors = NO_ERRORS
    histories: int = 0
    """Turns that came with an earlier call's reply in their history."""
    continued: int = 0
    """Those of them that continued that call exactly, token by token."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """What evaluations need of a call beside its facts."""

    harness: str | None
    versions: tuple[str, ...]
    tools: ToolErrors


def read_episodes(session: Session, chosen: Chosen) -> list[EpisodeFacts]:
    """The facts of the chosen episodes, the first opened first. Raises ``ValueError`` for a damaged reply."""
    rows = [row for row in session.execute(_select_episodes()).all() if _fits(row, chosen)]
    found: list[EpisodeFacts] = []
    tools: dict[bytes, frozenset[str]] = {}
    for start in range(0, len(rows), CHUNK):
        some = rows[start : start + CHUNK]
        ids = [row.id for row in some]
        facts = read_facts(session, ids)
        sampled = dict(_read_sampled(session, ids, tools))
        found += [_facts(row, facts.get(row.id, []), sampled) for row in some]
    return [facts for facts in found if chosen.harness is None or facts.harness == chosen.harness]


def version_order(label: str) -> tuple[int, str]:
    """Sorts versions as they were published; what is no version of ours stands last."""
    number = version_number(label.partition("..")[0])
    return (1 << 62, label) if number is None else (number, label)


def add_up(calls: Sequence[CallFacts], sampled: dict[str, Sampled]) -> dict[str, Any]:
    """The fields of ``EpisodeFacts`` that come from its calls, in order of arrival. Pure."""
    by_id = {call.id: call for call in calls}
    turns = [call for call in calls if _is_turn(call)]
    tools = sum((sampled[call.id].tools for call in turns), NO_ERRORS)
    gone_on = {call.parent_id for call in calls if call.parent_id is not None}
    # Of the last one nobody knows: the run may have been stopped while its tool was at work.
    ignored = sum(_is_good_call(sampled[call.id].tools) and call.id not in gone_on for call in turns[:-1])
    with_history = [call for call in turns if call.parent_id is not None or call.fork_reason is not None]
    return {
        "version": _version({version for call in turns for version in sampled[call.id].versions}),
        "turns": len(turns),
        "prompt_tokens": sum(call.prompt_len for call in calls),
        "completion_tokens": sum(call.completion_len for call in calls),
        "tools": tools + ToolErrors(ignored=ignored),
        "histories": len(with_history),
        "continued": sum(
            (parent := by_id.get(call.parent_id or "")) is not None and call.continues(parent) for call in with_history
        ),
    }


def _is_turn(call: CallFacts) -> bool:
    return call.kind in TRAINED_KINDS and call.status in ("answered", "observed") and call.retry_of is None


def _is_good_call(found: ToolErrors) -> bool:
    return found.calls > 0 and found.errors == 0


def _version(versions: set[str]) -> str | None:
    ordered = sorted(versions, key=version_order)
    if len(ordered) < 2:
        return ordered[0] if ordered else None
    return f"{ordered[0]}..{ordered[-1]}"


def _select_episodes() -> Any:
    course = (Episode.opened_at, Episode.ended_at, Episode.end, Episode.reward)
    return (
        select(Episode.id, Episode.details.label("details"), *course, Task.name.label("task"))
        .outerjoin(Group, Group.row == Episode.group_row)
        .outerjoin(Task, Task.row == Group.task_row)
        .order_by(Episode.opened_at, Episode.row)
    )


def _fits(row: Any, chosen: Chosen) -> bool:
    """Whether an episode is meant, as far as its own row says. Its harness may stand in its calls only."""
    if chosen.run is not None and not fnmatchcase(_said(row.details, "run") or "", chosen.run):
        return False
    if chosen.split is not None and _said(row.details, "split") != chosen.split:
        return False
    named = _said(row.details, "harness")
    if chosen.harness is not None and named not in (None, chosen.harness):
        return False
    return not chosen.tasks or any(fnmatchcase(row.task or "", pattern) for pattern in chosen.tasks)


def _said(details: JsonObject, name: str) -> str | None:
    """What an episode's metadata say; whoever opened it may have put anything there."""
    value = details.get(name)
    return value if isinstance(value, str) and value else None


def _facts(row: Any, calls: Sequence[CallFacts], sampled: dict[str, Sampled]) -> EpisodeFacts:
    names = {name for call in calls if (name := sampled[call.id].harness) is not None}
    return EpisodeFacts(
        id=row.id,
        task=row.task,
        run=_said(row.details, "run"),
        split=_said(row.details, "split"),
        harness=_said(row.details, "harness") or ", ".join(sorted(names)) or None,
        end=cast(EpisodeEnd | None, row.end),
        reward=row.reward,
        seconds=None if row.ended_at is None else row.ended_at - row.opened_at,
        **add_up(calls, sampled),
    )


def _read_sampled(
    session: Session, episode_ids: Sequence[str], tools: dict[bytes, frozenset[str]]
) -> Iterator[tuple[str, Sampled]]:
    """By call id. ``tools``: the names in the tool lists that are known by now; it is added to."""
    calls = CALLS.c
    columns = (calls.id, calls.status, calls.kind, calls.harness, sql_cast(calls.policy_spans, Text), calls.tools)
    rows = (
        session.connection()
        .execute(
            select(*columns, BLOBS.c.data)
            .outerjoin(BLOBS, BLOBS.c.digest == calls.reply)
            .where(calls.episode_id.in_(episode_ids))
        )
        .all()
    )
    digests = {row[5] for row in rows if row[5] is not None and row[5] not in tools}
    for digest, data in session.connection().execute(
        select(BLOBS.c.digest, BLOBS.c.data).where(BLOBS.c.digest.in_(digests))
    ):
        tools[digest] = tool_names(unpack_text(data))
    for call_id, status, kind, harness, spans, offered, reply in rows:
        versions = () if spans is None else tuple(dict.fromkeys(span[0] for span in json.loads(spans) or ()))
        errors = NO_ERRORS
        if reply is not None and status == "answered" and kind in TRAINED_KINDS:
            try:
                errors = find_errors(unpack_text(reply), tools.get(offered, frozenset()))
            except ValueError as error:
                raise ValueError(f"the reply of call {call_id!r}: {error}") from error
        yield call_id, Sampled(harness, versions, errors)
