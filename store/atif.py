"""An episode as a trajectory in the Agent Trajectory Interchange Format (ATIF v1.8). Pure.

The rules:

- Every call that got a reply of its own is one agent step, in exactly one trajectory; what its request says that no
  step before it has said stands before it: users and systems as steps, tool results in the step that asked for them.
- A line of calls is one trajectory: each call's request begins with all messages of the one before it. The first
  line is the document; every other one (a sub-agent, a title, a conversation that went on from an edited or compacted
  history) is one of its ``subagent_trajectories``, whose ``extra`` says what it is and which call it branched off from.
- ``is_copied_context`` marks what a line only repeats: what its parent's request holds too, and replies that stand in a
  request but were sampled elsewhere.
- Calls without a reply (refused, failed, open) and retries, whose reply is another call's, are listed in ``extra``.
- Token ids and log-probabilities are those of completions. A step's full prompt is left out: it would make the size
  grow with the square of the turns, and ``export.trace_row`` has it.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from dragoman.store.atif_steps import Steps, tool_definition
from dragoman.store.records import CallArrival, CallInfo, CallOutcome, EpisodeInfo, JsonObject

VERSION = "ATIF-v1.8"
NOTES = (
    "Written by dragoman export. Lines of calls that branch off are in subagent_trajectories, sub-agents or not; "
    "extra.kind says which. Calls without a reply of their own are in extra.other_calls."
)


@dataclass(slots=True)
class _Line:
    """Calls of which each goes on with all messages of the one before. Filled while the calls are walked."""

    first: CallArrival
    steps: Steps
    extra: JsonObject
    last: str
    """Id of its last call."""
    model: str | None
    tools: list[JsonObject] | None
    prompt_tokens: int = 0
    completion_tokens: int = 0


def trajectory(episode: EpisodeInfo, calls: Sequence[CallInfo]) -> JsonObject:
    """The document of one episode, whose ``calls`` come as ``calls.read_calls`` gives them.

    Raises ``ValueError`` naming the call for one whose messages cannot be put together.
    """
    lines: list[_Line] = []
    requests: dict[str, list[bytes]] = {}
    parsed: dict[bytes, JsonObject] = {}
    others: list[JsonObject] = []
    for call in calls:
        outcome = call.outcome
        if outcome is None:
            others.append({"call": call.arrival.id, "status": "arrived"})
            continue
        request = requests[outcome.id] = _digests(outcome, requests, parsed)
        if outcome.reply is None or outcome.retry_of is not None:
            others.append(_other(outcome))
            continue
        line = _goes_on(lines, outcome, request, requests)
        if line is None:
            line = _begin(call.arrival, outcome)
            lines.append(line)
            new, copied = request, outcome.messages_kept
        else:
            new, copied = request[len(requests[line.last]) :], 0
            if new and parsed[new[0]]["role"] == "assistant":  # the reply, as the harness sends it back
                new = new[1:]
        for place, address in enumerate(new):
            line.steps.say(parsed[address], copied=place < copied)
        _reply(line, call, outcome)
        line.last = outcome.id
    return _document(episode, lines, others)


def _goes_on(
    lines: Sequence[_Line], outcome: CallOutcome, request: list[bytes], requests: Mapping[str, list[bytes]]
) -> _Line | None:
    """The line that a call goes on with: its parent's, or, where it names none, the one that it says the most of."""
    fitting = [
        line
        for line in lines
        if outcome.parent_id in (None, line.last) and request[: len(requests[line.last])] == requests[line.last]
    ]
    return max(fitting, key=lambda line: len(requests[line.last]), default=None)


def _begin(arrival: CallArrival, outcome: CallOutcome) -> _Line:
    return _Line(
        arrival,
        Steps(),
        {"kind": arrival.kind, "thread": arrival.thread, "parent_call": outcome.parent_id},
        last=outcome.id,
        model=outcome.model,
        tools=None if outcome.tools is None else [tool_definition(tool) for tool in json.loads(outcome.tools.data)],
    )


def _digests(outcome: CallOutcome, known: Mapping[str, list[bytes]], parsed: dict[bytes, JsonObject]) -> list[bytes]:
    """The digests of all messages of a call's request; those that are new go to ``parsed``, by digest."""
    before = known.get(outcome.parent_id or "", []) if outcome.messages_kept else []
    if outcome.messages_kept > len(before):
        raise ValueError(f"call {outcome.id!r}: it keeps more messages of its parent {outcome.parent_id!r} than it has")
    parsed.update((blob.digest, json.loads(blob.data)) for blob in outcome.messages if blob.digest not in parsed)
    return [*before[: outcome.messages_kept], *(blob.digest for blob in outcome.messages)]


def _other(outcome: CallOutcome) -> JsonObject:
    other: JsonObject = {"call": outcome.id, "status": outcome.status}
    for name in ("http_status", "error_code", "retry_of"):
        if (value := getattr(outcome, name)) is not None:
            other[name] = value
    return other


def _reply(line: _Line, call: CallInfo, outcome: CallOutcome) -> None:
    """Add the agent step of a call."""
    assert outcome.reply is not None
    metrics: JsonObject = {}
    if outcome.completion_ids is not None and outcome.logprobs is not None:
        metrics = {
            "prompt_tokens": outcome.prompt_len,
            "completion_tokens": len(outcome.completion_ids),
            "completion_token_ids": outcome.completion_ids.tolist(),
            "logprobs": outcome.logprobs.tolist(),
        }
        line.prompt_tokens += outcome.prompt_len or 0
        line.completion_tokens += len(outcome.completion_ids)
    extra = {
        "call": outcome.id,
        "kind": call.arrival.kind,
        "status": outcome.status,
        "finish_reason": outcome.finish_reason,
        "fork_reason": outcome.fork_reason,
        "policy_spans": [[span.version, span.start, span.end] for span in outcome.policy_spans] or None,
    }
    line.steps.reply(
        json.loads(outcome.reply.data),
        timestamp=datetime.fromtimestamp(outcome.finished_at, UTC).isoformat(),
        model_name=outcome.model,
        metrics=metrics or None,
        llm_call_count=1,
        extra={name: value for name, value in extra.items() if value is not None},
    )


def _document(episode: EpisodeInfo, lines: Sequence[_Line], others: list[JsonObject]) -> JsonObject:
    spec = episode.spec
    of_episode = {
        "task": spec.task,
        "group": spec.group,
        "end": episode.end,
        "end_reason": episode.end_reason,
        "reward": episode.reward,
        "metadata": spec.metadata,
        "other_calls": others,
    }
    if not lines:
        agent = {"name": "unknown", "version": "unknown"}
        return {**_head(episode.id, episode.id), "agent": agent, "steps": [], "notes": NOTES, "extra": of_episode}
    first, *rest = (_trajectory(episode.id, line, line.first.id) for line in lines)
    first |= {"trajectory_id": episode.id, "notes": NOTES, "extra": {**first["extra"], **of_episode}}
    if rest:
        first["subagent_trajectories"] = rest
    return first


def _head(episode_id: str, name: str) -> JsonObject:
    return {"schema_version": VERSION, "session_id": episode_id, "trajectory_id": name}


def _trajectory(episode_id: str, line: _Line, name: str) -> JsonObject:
    agent: JsonObject = {
        "name": line.first.harness or "unknown",
        "version": line.first.harness_version or "unknown",
    }
    if line.model is not None:
        agent["model_name"] = line.model
    if line.tools is not None:
        agent["tool_definitions"] = line.tools
    return {
        **_head(episode_id, name),
        "agent": agent,
        "steps": line.steps.done,
        "final_metrics": {
            "total_prompt_tokens": line.prompt_tokens,
            "total_completion_tokens": line.completion_tokens,
            "total_steps": len(line.steps.done),
        },
        "extra": line.extra,
    }
