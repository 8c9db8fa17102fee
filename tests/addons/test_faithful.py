"""Cases in which building a token stream afterwards, from the prompts that were sent, trains something unfaithful.

Each is a row of the table of such cases that is known from another gateway. Here every prompt is made so that the
invariant holds when the call is asked: it is its parent's stream to the token with something new behind it, or it is
rendered in full, and the call says so.
"""

from functools import cache
from typing import Any

import pytest

from dragoman.addons.bridge import Thinking
from dragoman.addons.call import Call
from dragoman.addons.messages import Message, ReasoningPart, TextPart, ToolCallPart
from dragoman.addons.tokens import TokenCodec
from dragoman.trainer.tiny_model import TEMPLATE
from tests.addons.talk import (
    END,
    OLD_REASONING_DROPPED,
    SYSTEM,
    TOOLS,
    Talk,
    continues,
    results,
    spelt,
    tool_call,
    user,
)
from tests.addons.templates.families import FAMILIES, codec
from tests.models import tiny_model_folder

THOUGHT = "<think>\nI wonder\n</think>\n\n"


@cache
def tiny() -> TokenCodec:
    return TokenCodec.load(str(tiny_model_folder()))


def assert_rendered_in_full(call: Call, reason: str | None) -> None:
    """The whole conversation is there as the template writes it, and the call says why."""
    used = call.served.codec
    assert call.prompt.fork_reason == reason
    assert call.prompt.ids.tolist() == used.render(call.request.messages, TOOLS).tolist()


def assert_nothing_is_lost(talk: Talk) -> None:
    """Each call that was answered is a node of its own, and its stored row gives back what was asked."""
    assert len(talk.lineage.nodes) == len(talk.rows)
    streams: dict[str | None, list[int]] = {None: []}
    for row in talk.rows:
        outcome = row.outcome
        assert outcome
        assert outcome.prompt_ids is not None
        assert outcome.completion_ids is not None
        prompt = streams[outcome.parent_id][: outcome.shared_len] + outcome.prompt_ids.tolist()
        assert prompt == talk.lineage.nodes[outcome.id].prompt().tolist()
        assert len(prompt) == outcome.prompt_len
        streams[outcome.id] = prompt + outcome.completion_ids.tolist()
        whole = outcome.parent_id is not None and outcome.shared_len == len(streams[outcome.parent_id])
        assert whole or outcome.fork_reason is not None or outcome.parent_id is None


@pytest.mark.parametrize("thinking", ["template", "keep"])
def test_thinking_that_the_template_strips(thinking: Thinking) -> None:
    """Not: later turns trained under a context that the model never saw."""
    used = codec(FAMILIES["chatml"][0], "template", OLD_REASONING_DROPPED)
    talk = Talk(used, thinking=thinking)
    first, reply = talk.turn([SYSTEM, user("hi")], f"{THOUGHT}{tool_call()}{END}")
    said = [SYSTEM, user("hi"), reply, results(reply)]
    second, answer = talk.turn(said, f"{THOUGHT}Done.{END}")
    assert continues(second, talk.node(first)), "in its tool cycle the template keeps it"
    third, _ = talk.turn([*said, answer, user("and?")], f"Well.{END}")
    if thinking == "keep":
        assert continues(third, talk.node(second))
        assert used.decode(third.prompt.ids).count("I wonder") == 2
    else:
        assert_rendered_in_full(third, "thinking_policy")
        assert "I wonder" not in used.decode(third.prompt.ids)
    assert_nothing_is_lost(talk)


def test_arguments_that_the_harness_serialised_anew() -> None:
    talk = Talk(tiny())
    first, reply = talk.turn([user("hi")], f"{tool_call(at='here', why='é')}{END}")
    (call,) = reply.parts
    assert isinstance(call, ToolCallPart)
    echo = Message("assistant", (ToolCallPart(call.id, call.name, '{"why":"\\u00e9","at":"here"}'),))
    second, _ = talk.turn([user("hi"), echo, results(echo)], f"Done.{END}")
    assert continues(second, talk.node(first))
    assert second.found.echo_changed == 1
    assert_nothing_is_lost(talk)


def test_a_reply_that_is_tokenised_otherwise_when_it_is_read_again() -> None:
    talk = Talk(tiny())
    said: list[Message] = [SYSTEM, user("hi")]
    previous = None
    for text in ("I look at the question. 你好", "const x = [1, 2];", '{"a": [true, null]}'):
        call, reply = talk.turn(said, spelt(tiny(), f"{text}\n{tool_call(at=text[:7])}{END}"))
        assert previous is None or continues(call, talk.node(previous))
        said += [reply, results(reply)]
        previous = call
    assert previous is not None
    last = talk.ask(said)
    assert tiny().decode(last.prompt.ids) == tiny().render_text(tuple(said), TOOLS)
    assert len(last.prompt.ids) > len(tiny().render(tuple(said), TOOLS)), "rendered again it would be other tokens"
    assert_nothing_is_lost(talk)


def test_codex_replays_the_text_and_the_call_of_a_turn_as_two_messages() -> None:
    """Not: the call is shown twice."""
    talk = Talk(tiny())
    first, reply = talk.turn([user("hi")], f"I look.\n{tool_call()}{END}")
    text, call = (Message("assistant", (part,)) for part in reply.parts)
    said = [user("hi"), text, call, results(reply)]
    second, _ = talk.turn(said, f"Done.{END}")
    assert continues(second, talk.node(first))
    assert tiny().decode(second.prompt.ids).count('"name": "look", "arguments"') == 1
    assert tiny().decode(second.prompt.ids) == tiny().render_text((user("hi"), reply, results(reply)), TOOLS)
    edited, _ = talk.turn([user("hi!"), *said[1:]], f"Done.{END}")
    assert_rendered_in_full(edited, "history_edited")
    assert tiny().decode(edited.prompt.ids).count("<|im_start|>assistant") == 2, "its reply, and the next"
    assert_nothing_is_lost(talk)


def test_a_retry_of_the_same_prompt() -> None:
    """Not: the chain is cut, and the calls behind it are lost."""
    talk = Talk(tiny())
    said: list[Message] = [SYSTEM, user("hi")]
    kept = None
    for number in range(5):
        if number == 2:
            twice, _ = talk.turn(said, f"{tool_call(at='lost')}{END}")
        call, reply = talk.turn(said, f"{tool_call(at=str(number))}{END}")
        assert kept is None or continues(call, talk.node(kept))
        if number == 2:
            assert kept is not None
            assert continues(twice, talk.node(kept)), "it is a sample of its own"
            assert twice.prompt.ids.tolist() == call.prompt.ids.tolist()
        said += [reply, results(reply)]
        kept = call
    assert len(talk.rows) == 6
    assert_nothing_is_lost(talk)


@pytest.mark.parametrize("replies", [("one", "two"), ("the same", "the same")])
def test_parallel_sub_agents_with_the_same_first_prompt(replies: tuple[str, str]) -> None:
    """Not: the second one's opening call is lost."""
    talk = Talk(tiny())
    asked = [talk.ask([SYSTEM, user("find it")]) for _ in replies]
    ends = [(call, talk.answer(call, f"{text}\n{tool_call()}{END}")) for call, text in zip(asked, replies, strict=True)]
    for turn in range(3):
        for at, (call, reply) in enumerate(ends):
            said = [*call.request.messages, reply, results(reply, f"result {turn}")]
            following = talk.ask(said)
            assert continues(following, talk.node(call)), f"agent {at} goes on from its own call"
            ends[at] = (following, talk.answer(following, f"more\n{tool_call()}{END}"))
    assert_nothing_is_lost(talk)


def test_a_sub_agent_that_begins_with_its_parents_history() -> None:
    """Not: it takes the parent's place."""
    talk = Talk(tiny())
    main, reply = talk.turn([SYSTEM, user("hi")], f"{tool_call()}{END}")
    shared = [SYSTEM, user("hi"), reply]
    sub, found = talk.turn([*shared, results(reply, "you are a sub-agent: look around")], f"Found.{END}")
    assert continues(sub, talk.node(main))
    deeper, _ = talk.turn([*sub.request.messages, found, user("closer")], f"Closer.{END}")
    assert continues(deeper, talk.node(sub))
    back, _ = talk.turn([*shared, results(reply, "the sub-agent found it")], f"Good.{END}")
    assert continues(back, talk.node(main))
    assert_nothing_is_lost(talk)


def test_a_cut_reply_that_a_user_message_replaces() -> None:
    """Not: the message is missing from the context while the discarded text is trained in it."""
    talk = Talk(tiny())
    first, reply = talk.turn([SYSTEM, user("hi")], f"{tool_call()}{END}")
    said = [SYSTEM, user("hi"), reply, results(reply)]
    cut, _ = talk.turn(said, "this goes on and on and")
    after, _ = talk.turn([*said, user("Please be shorter.")], f"Fine.{END}")
    for call in (cut, after):
        assert continues(call, talk.node(first))
    text = tiny().decode(after.prompt.ids)
    assert "Please be shorter." in text
    assert "goes on" not in text
    assert text == tiny().render_text((*said, user("Please be shorter.")), TOOLS)
    assert_nothing_is_lost(talk)


def test_a_cut_reply_that_is_kept_is_closed() -> None:
    talk = Talk(tiny())
    cut, reply = talk.turn([user("hi")], "this goes on and")
    after, _ = talk.turn([user("hi"), reply, user("Go on.")], f"on.{END}")
    assert continues(after, talk.node(cut))
    assert tiny().decode(after.prompt.ids) == tiny().render_text((user("hi"), reply, user("Go on.")), TOOLS)


def test_a_thinking_block_that_stands_in_the_generation_prompt_only() -> None:
    """Not: every chain of turns falls into single turns."""
    no_think = TEMPLATE.read_text().replace(
        "{{- '<|im_start|>assistant\\n' }}{%- endif %}",
        "{{- '<|im_start|>assistant\\n<think>\\n\\n</think>\\n\\n' }}{%- endif %}",
    )
    used = codec(FAMILIES["chatml"][0], "template", no_think)
    talk = Talk(used)
    said: list[Message] = [SYSTEM, user("hi")]
    previous = None
    for number in range(4):
        call, reply = talk.turn(said, f"{tool_call(at=str(number))}{END}" if number < 2 else f"Yes.{END}")
        assert previous is None or continues(call, talk.node(previous))
        said += [reply, results(reply) if number < 2 else user("and?")]
        previous = call
    assert used.decode(talk.ask(said).prompt.ids).count("<think>\n\n</think>") == 5, "one a reply, and the next"
    assert used.render_text(tuple(said), TOOLS).count("<think>\n\n</think>") == 1
    assert_nothing_is_lost(talk)


def test_a_compacted_history_and_an_edited_system_prompt() -> None:
    """Not: new chains without a word."""
    talk = Talk(tiny())
    first, reply = talk.turn([SYSTEM, user("hi")], f"{tool_call()}{END}")
    said = [user("hi"), reply, results(reply)]
    compacted, answer = talk.turn([SYSTEM, user("Summary: they said hi.")], f"Yes.{END}")
    assert_rendered_in_full(compacted, None)
    assert compacted.prompt.parent is None, "it is the beginning of a branch of its own"
    onwards, _ = talk.turn([SYSTEM, user("Summary: they said hi."), answer, user("go on")], f"Ok.{END}")
    assert continues(onwards, talk.node(compacted))
    system = Message("system", (TextPart("Be another agent."),))
    edited, _ = talk.turn([system, *said], f"Done.{END}")
    assert_rendered_in_full(edited, "system_changed")
    assert edited.prompt.parent is talk.node(first)
    fewer = talk.ask([SYSTEM, *said], tools=TOOLS[:1])
    assert (fewer.prompt.fork_reason, fewer.prompt.parent) == ("tools_changed", talk.node(first))
    assert_nothing_is_lost(talk)


def test_side_calls_between_the_turns() -> None:
    """Not: a title is a link of the agent's chain."""
    talk = Talk(tiny())
    namer = Message("system", (TextPart("Write a title."),))
    said: list[Message] = [SYSTEM, user("hi")]
    previous = None
    for number in range(3):
        title, _ = talk.turn([namer, user(f"hi, {number}")], f"A title{END}")
        assert title.prompt.parent is None
        assert_rendered_in_full(title, None)
        call, reply = talk.turn(said, f"{tool_call(at=str(number))}{END}")
        assert previous is None or continues(call, talk.node(previous))
        said += [reply, results(reply)]
        previous = call
    assert_nothing_is_lost(talk)


def test_a_reply_that_a_stop_string_ended() -> None:
    """Not: the wrong token is taken for the end of a turn."""
    talk = Talk(tiny())
    first = talk.ask([user("hi")])
    reply = talk.answer(first, "I look.\nObservation:", stop=("\nObservation:",))
    assert reply.parts == (TextPart("I look."),)
    second, _ = talk.turn([user("hi"), reply, user("It is there.")], f"Good.{END}")
    assert continues(second, talk.node(first))
    assert tiny().decode(second.prompt.own_ids) == (
        "<|im_end|>\n<|im_start|>user\nIt is there.<|im_end|>\n<|im_start|>assistant\n"
    )
    assert_nothing_is_lost(talk)


def test_reasoning_that_the_harness_trims_or_leaves_out() -> None:
    talk = Talk(tiny())
    first, reply = talk.turn([user("hi")], f"{THOUGHT}Look.\n{tool_call()}{END}")
    kept: tuple[Any, ...] = tuple(part for part in reply.parts if not isinstance(part, ReasoningPart))
    for echo in (kept, (ReasoningPart("I"), *kept)):
        call = talk.ask([user("hi"), Message("assistant", echo), results(reply)])
        assert continues(call, talk.node(first))
        assert "I wonder" in tiny().decode(call.prompt.ids)
        assert call.found.echo_changed == 1
