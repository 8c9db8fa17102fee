"""What a request goes on from when it names an earlier reply by its id (the Responses dialect). Pure.

Rules of this module: an id stands for the messages of that request and its reply, but for its ``instructions``, and for
the tools that came with its input. Everything else (instructions, the other tools, sampling) is said anew by each
request. What cannot be told from the stored call itself is in its ``state``. A conversation that was compacted is its
system messages and the summary.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dragoman.addons.blobs import read_message, read_tools
from dragoman.addons.messages import ChatRequest, Earlier, Message, ReplyPart
from dragoman.addons.providers.openai_items import SUMMARISE, compaction_message, summary_of
from dragoman.store.records import CallInfo, JsonObject


@dataclass(frozen=True, slots=True)
class Kept:
    """A stored reply that a request names."""

    earlier: Earlier
    anyone: bool
    """Whether any request of the episode may name it; if not, only those on the socket that it was sent to."""


def earlier_of(request: ChatRequest, reply: Sequence[ReplyPart]) -> Earlier:
    """What the reply to ``request`` stands for. ``reply`` is empty where there is none (a warm-up)."""
    details = request.details
    tools = tuple(tool for tool in request.tools if tool.name in details.input_tools)
    return Earlier(_conversation(request.messages, details.instructions, reply), tools)


def state_of(request: ChatRequest) -> JsonObject | None:
    """What is stored beside the call for ``read_kept``; ``None``: the dialect gives its replies no such meaning."""
    if request.responses is None:
        return None
    details = request.responses
    tools = [[tool.name, tool.kind, tool.namespace] for tool in request.tools if tool.name in details.input_tools]
    return {"kept": details.kept, "instructions": details.instructions, "tools": tools}


def read_kept(call: CallInfo, messages: Sequence[bytes], state: JsonObject) -> Kept:
    """The same as ``earlier_of``, from the store. Raises ``ValueError`` when it holds something that is not ours.

    ``messages``: all of the call's, as ``store.calls.read_messages`` gives them.
    """
    outcome = call.outcome
    if outcome is None:
        raise ValueError(f"call {call.arrival.id!r} has no outcome, and so no state")
    reply = () if outcome.reply is None else read_message(outcome.reply.data).parts
    named = {tool.name: tool for tool in read_tools(outcome.tools)}
    tools = tuple(replace(named[name], kind=kind, namespace=namespace) for name, kind, namespace in state["tools"])
    said = tuple(read_message(data) for data in messages)
    return Kept(Earlier(_conversation(said, state["instructions"], reply), tools), state["kept"])


def _conversation(messages: Sequence[Message], instructions: bool, reply: Sequence[object]) -> tuple[Message, ...]:
    said = tuple(messages[1:] if instructions else messages)
    parts = tuple(part for part in reply if isinstance(part, ReplyPart))
    if said[-1:] == (SUMMARISE,):
        return (*(message for message in said if message.role == "system"), compaction_message(summary_of(parts)))
    return (*said, Message("assistant", parts)) if parts else said
