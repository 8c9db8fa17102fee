"""An episode's lineage from the store alone, so that a restarted gateway continues where the last one stopped."""

from collections.abc import Sequence

from dragoman.addons.blobs import read_message
from dragoman.addons.canonical import carried
from dragoman.addons.lineage import EpisodeLineage, Node, system_key
from dragoman.addons.messages import Message, ReasoningPart, TextPart, ToolCallPart
from dragoman.addons.prompt import seed_of
from dragoman.store.records import Blob, CallInfo


def restore(calls: Sequence[CallInfo]) -> EpisodeLineage:
    """The answered calls of ``calls`` (one episode's, in the order of arrival) as they can be continued.

    Raises ``ValueError`` when the store holds something that is not ours.
    """
    lineage = EpisodeLineage()
    calls = _parents_first(calls)
    known: dict[bytes, Message] = {}
    for call in calls:
        outcome = call.outcome
        if outcome is None or outcome.status != "answered" or outcome.reply is None:
            continue
        if outcome.prompt_ids is None or outcome.completion_ids is None:
            continue
        known.update((blob.digest, _message(blob)) for blob in outcome.messages if blob.digest not in known)
        parent = lineage.nodes.get(outcome.parent_id) if outcome.parent_id is not None else None
        before = parent.message_digests[: outcome.messages_kept] if parent is not None else ()
        digests = (*before, *(blob.digest for blob in outcome.messages))
        messages = tuple(known[address] for address in digests)
        seed = seed_of(outcome.tools.digest if outcome.tools else None, outcome.tokenizer_hash, outcome.template_hash)
        reply = tuple(
            p for p in _message(outcome.reply).parts if isinstance(p, ReasoningPart | TextPart | ToolCallPart)
        )
        lineage.add(
            Node(
                call_id=outcome.id,
                key=lineage.find(messages, seed).key,
                seed=seed,
                system=system_key(carried(messages)),
                reply=reply,
                parent=parent,
                shared_len=outcome.shared_len,
                prompt_ids=outcome.prompt_ids,
                completion_ids=outcome.completion_ids,
                message_digests=digests,
            )
        )
    return lineage


def _parents_first(calls: Sequence[CallInfo]) -> list[CallInfo]:
    """The same calls, none before its parent: where a clock was put back, a call arrived "before" what it continues."""
    by_id = {call.arrival.id: call for call in calls}
    ordered: dict[str, CallInfo] = {}
    for call in calls:
        line: list[CallInfo] = []
        at: CallInfo | None = call
        while at is not None and at.arrival.id not in ordered:
            line.append(at)
            parent = at.outcome.parent_id if at.outcome is not None else None
            at = None if parent is None else by_id.get(parent)
        ordered.update((one.arrival.id, one) for one in reversed(line))
    return list(ordered.values())


def _message(blob: Blob) -> Message:
    return read_message(blob.data)
