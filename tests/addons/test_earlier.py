"""What an earlier reply stands for is the same from memory and from the store."""

import orjson
import pytest

from dragoman.addons.blobs import message_blob, reply_blob, tools_blob
from dragoman.addons.earlier import earlier_of, read_kept, state_of
from dragoman.addons.messages import ChatRequest, Message, ReplyPart, ResponsesDetails, TextPart, Tool, ToolCallPart
from dragoman.addons.providers.openai_items import SUMMARISE, compaction_message
from dragoman.store.records import CallArrival, CallInfo, CallOutcome

SYSTEM = Message("system", (TextPart("Be brief."),))
DEVELOPER = Message("system", (TextPart("You are an agent."),))
USER = Message("user", (TextPart("Hi"),))
TOOLS = (
    Tool("bash", "Runs.", {"type": "object"}),
    Tool("functions__exec", "Runs code.", {"type": "object"}, "custom", "functions"),
)
REPLY: tuple[ReplyPart, ...] = (TextPart("Now."), ToolCallPart("call_1", "functions__exec", '{"input": "x"}'))


def request(*messages: Message, **details: object) -> ChatRequest:
    return ChatRequest(
        "openai_responses",
        "m",
        messages,
        TOOLS,
        responses=ResponsesDetails(**details),  # type: ignore[arg-type]
    )


def stored(asked: ChatRequest, reply: tuple[ReplyPart, ...]) -> CallInfo:
    outcome = CallOutcome(
        "a" * 20, "answered", 200, 2.0, tools=tools_blob(asked.tools), reply=reply_blob(reply) if reply else None
    )
    return CallInfo(CallArrival("a" * 20, "e", "openai_responses", "/v1/responses", 1.0), outcome)


@pytest.mark.parametrize("reply", [REPLY, ()], ids=["reply", "warm-up"])
@pytest.mark.parametrize("instructions", [True, False])
@pytest.mark.parametrize("kept", [True, False])
def test_the_store_gives_what_memory_had(reply: tuple[ReplyPart, ...], instructions: bool, kept: bool) -> None:
    asked = request(SYSTEM, DEVELOPER, USER, instructions=instructions, kept=kept, input_tools=("functions__exec",))
    earlier = earlier_of(asked, reply)
    said = (DEVELOPER, USER) if instructions else (SYSTEM, DEVELOPER, USER)
    assert earlier.messages == ((*said, Message("assistant", reply)) if reply else said)
    assert earlier.tools == TOOLS[1:]

    state = state_of(asked)
    assert state is not None
    blobs = [message_blob(message).data for message in asked.messages]
    found = read_kept(stored(asked, reply), blobs, orjson.loads(orjson.dumps(state)))
    assert (found.earlier, found.anyone) == (earlier, kept)


def test_a_compacted_conversation_is_its_system_messages_and_the_summary() -> None:
    asked = request(DEVELOPER, USER, SUMMARISE, compaction="item")
    earlier = earlier_of(asked, (TextPart("We said hi."),))
    assert earlier.messages == (DEVELOPER, compaction_message("We said hi."))


def test_other_dialects_have_no_state() -> None:
    assert state_of(ChatRequest("anthropic", "m", (USER,))) is None


def test_a_call_that_has_not_ended_has_no_state() -> None:
    with pytest.raises(ValueError, match="no outcome"):
        read_kept(CallInfo(CallArrival("a" * 20, "e", "openai_responses", "/v1/responses", 1.0), None), [], {})
