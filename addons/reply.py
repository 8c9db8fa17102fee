"""From what was sampled to the one description of a reply. Pure.

A malformed tool call reaches the harness as a call with the arguments as the model wrote them: every harness turns
that into an error result and goes on. Only where not even a tool's name can be read does the raw text stay text, since
no dialect has a nameless call.
"""

from dragoman.addons.messages import (
    Completion,
    ReasoningPart,
    Reply,
    ReplyPart,
    TextPart,
    ToolCallPart,
    Usage,
)
from dragoman.addons.providers.base import issue_signature
from dragoman.addons.text_stream import ParsedReply
from dragoman.store.records import FinishReason

EMPTY = "…"
"""Shown in place of a reply that shows nothing, where a harness cannot take that (Qwen Code trims white space off)."""


def build_reply(
    *,
    call_id: str,
    model: str,
    created: int,
    tool_call_prefix: str,
    parsed: ParsedReply,
    completion: Completion,
    stop_sequence: str | None,
    show_completion: bool,
    never_empty: bool = False,
) -> tuple[str, Reply]:
    """Make the reply.

    Returns:
        Text that must still be sent as a delta (raw text of calls without a name, or ``EMPTY``; usually empty), and the
        reply whose text part already holds it.
    """
    unsent = ""
    calls: list[ReplyPart] = []
    for call in parsed.tool_calls:
        if call.name is None:
            unsent += call.raw
        else:
            calls.append(ToolCallPart(f"{tool_call_prefix}{call_id}_{len(calls)}", call.name, call.arguments))
    if never_empty and not calls and not (parsed.text + unsent).strip():
        unsent += EMPTY
    parts: list[ReplyPart] = []
    if parsed.reasoning:
        parts.append(ReasoningPart(parsed.reasoning, issue_signature(call_id)))
    if parsed.text + unsent:
        parts.append(TextPart(parsed.text + unsent))
    finish: FinishReason = completion.finish_reason
    if finish == "stop" and calls:
        finish = "tool_calls"
    usage = Usage(prompt_tokens=len(completion.prompt_ids), completion_tokens=len(completion.completion_ids))
    reply = Reply(
        id=call_id,
        model=model,
        created=created,
        parts=(*parts, *calls),
        finish_reason=finish,
        usage=usage,
        stop_sequence=stop_sequence,
        completion=completion if show_completion else None,
    )
    return unsent, reply
