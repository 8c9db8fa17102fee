"""The exact prompt of a request: the parent's stream and what is new, or a full rendering with the reason."""

from dataclasses import replace
from functools import cache

import pytest

from dragoman.addons.errors import InvalidRequest, Unsupported
from dragoman.addons.lineage import EpisodeLineage, shared_prefix
from dragoman.addons.messages import (
    ChatRequest,
    ImagePart,
    Message,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from dragoman.addons.prompt import make_prompt, render_prompt, seed_of
from dragoman.addons.tokens import TokenCodec
from dragoman.store.records import ProviderName
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

THOUGHT = "<think>\nhm\n</think>\n\n"


@cache
def tiny() -> TokenCodec:
    return TokenCodec.load(str(tiny_model_folder()))


def dropping() -> TokenCodec:
    """A template that drops reasoning before the last user message."""
    return codec(FAMILIES["chatml"][0], "template", OLD_REASONING_DROPPED)


def test_a_first_request_is_rendered_in_full() -> None:
    call = Talk(tiny()).ask([SYSTEM, user("hi")])
    prompt = call.prompt
    assert (prompt.parent, prompt.shared_len, prompt.fork_reason) == (None, 0, None)
    assert prompt.ids.tolist() == tiny().render((SYSTEM, user("hi")), TOOLS).tolist() == prompt.own_ids.tolist()


def test_a_turn_is_the_stream_and_what_is_new() -> None:
    talk = Talk(tiny())
    first, reply = talk.turn([SYSTEM, user("hi")], spelt(tiny(), f"I look.\n{tool_call(at='é')}{END}"))
    said = (SYSTEM, user("hi"), reply, results(reply), user("go on"))
    call = talk.ask(said)
    assert continues(call, talk.node(first))
    assert tiny().decode(call.prompt.own_ids) == (
        "\n<|im_start|>user\n<tool_response>\nok\n</tool_response><|im_end|>\n"
        "<|im_start|>user\ngo on<|im_end|>\n<|im_start|>assistant\n"
    )
    assert tiny().decode(call.prompt.ids) == tiny().render_text(said, TOOLS)
    assert call.prompt.ids.tolist() != tiny().render(said, TOOLS).tolist(), "the model spelt its reply in its own way"


def test_a_fork_is_rendered_in_full_and_keeps_what_is_the_same() -> None:
    talk = Talk(tiny())
    first, reply = talk.turn([SYSTEM, user("hi")], f"{tool_call()}{END}")
    said = (SYSTEM, user("hi, and hurry"), reply, results(reply))
    prompt = talk.ask(said).prompt
    stream = talk.node(first).stream()
    assert (prompt.parent, prompt.fork_reason) == (talk.node(first), "history_edited")
    assert prompt.ids.tolist() == tiny().render(said, TOOLS).tolist()
    assert prompt.shared_len == shared_prefix(stream, prompt.ids)
    assert tiny().decode(stream[: prompt.shared_len]).endswith("<|im_start|>user\nhi")
    assert [*stream[: prompt.shared_len], *prompt.own_ids] == prompt.ids.tolist()


def test_a_fork_of_an_unknown_call_shares_nothing() -> None:
    call = Talk(tiny()).ask([user("hi"), Message("assistant", (TextPart("never said"),)), user("x")])
    assert (call.prompt.parent, call.prompt.shared_len, call.prompt.fork_reason) == (None, 0, "unknown_parent")


def test_what_the_template_drops_is_a_fork_unless_it_is_to_be_kept() -> None:
    for thinking in ("template", "keep"):
        talk = Talk(dropping(), thinking=thinking)
        first, reply = talk.turn([user("hi")], f"{THOUGHT}Yes.{END}")
        call = talk.ask([user("hi"), reply, user("and?")])
        if thinking == "keep":
            assert continues(call, talk.node(first))
            assert "hm" in dropping().decode(call.prompt.ids)
        else:
            assert (call.prompt.fork_reason, call.prompt.parent) == ("thinking_policy", talk.node(first))
            assert "hm" not in dropping().decode(call.prompt.ids)


def test_reasoning_counts_although_the_harness_leaves_it_out() -> None:
    talk = Talk(dropping())
    first, reply = talk.turn([user("hi")], f"{THOUGHT}{tool_call()}{END}")
    silent = Message("assistant", tuple(part for part in reply.parts if not isinstance(part, ReasoningPart)))
    call = talk.ask([user("hi"), silent, results(reply)])
    assert continues(call, talk.node(first)), "in a tool cycle it is kept"
    second = talk.answer(call, f"Done.{END}")
    after = talk.ask([user("hi"), silent, results(reply), second, user("and?")])
    assert after.prompt.fork_reason == "thinking_policy", "the stream holds it, two replies ago"


def test_reasoning_that_a_fork_left_out_is_no_reason_later() -> None:
    talk = Talk(dropping())
    said = [user("hi")]
    for sampled in (f"{THOUGHT}Yes.{END}", f"No.{END}", f"Maybe.{END}"):
        _, reply = talk.turn(said, sampled)
        said += [reply, user("and?")]
    assert talk.ask(said).prompt.fork_reason is None
    reasons = [row.outcome.fork_reason for row in talk.rows if row.outcome]
    assert reasons == [None, "thinking_policy", None]


def test_what_a_fork_shows_is_what_the_harness_replayed() -> None:
    talk = Talk(dropping())
    _, reply = talk.turn([user("hi")], f"{THOUGHT}{tool_call()}{END}")
    silent = Message("assistant", tuple(part for part in reply.parts if not isinstance(part, ReasoningPart)))
    said = [user("hi, and hurry"), silent, results(reply)]
    fork, answer = talk.turn(said, f"Done.{END}")
    assert fork.prompt.fork_reason == "history_edited"
    assert continues(talk.ask([*said, answer, user("and?")]), talk.node(fork)), "it holds no reasoning to be dropped"


def test_tool_results_find_their_calls_by_the_ids_of_the_harness() -> None:
    """Gemini replays ``tool__<id>``; a template that shows the tool's name beside its result must find it."""
    named = OLD_REASONING_DROPPED.replace(
        "\\n<tool_response>\\n'", "\\n<tool_response>\\n' + (message.name or 'NOBODY')"
    )
    used = codec(FAMILIES["chatml"][0], "template", named)
    talk = Talk(used)
    first, reply = talk.turn([user("hi")], f"{tool_call('touch')}{END}")
    (call,) = (part for part in reply.parts if isinstance(part, ToolCallPart))
    echo = Message("assistant", (replace(call, id=f"touch__{call.id}"),))
    result = Message("tool", (ToolResultPart(f"touch__{call.id}", (TextPart("ok"),)),))
    asked = talk.ask([user("hi"), echo, result])
    assert continues(asked, talk.node(first))
    assert "<tool_response>\ntouchok" in used.decode(asked.prompt.own_ids)
    assert used.decode(asked.prompt.ids) == used.render_text((user("hi"), echo, result), TOOLS)


def test_a_conversation_that_cannot_be_shown_is_refused_also_behind_a_reply() -> None:
    talk = Talk(tiny())
    _, reply = talk.turn([user("hi")], f"Yes.{END}")
    with pytest.raises(Unsupported, match="cannot see images"):
        talk.ask([user("hi"), reply, Message("user", (ImagePart("image/png", "aGk="),))])


@pytest.mark.parametrize(
    ("provider", "field"),
    [("anthropic", "messages"), ("openai_chat", "messages"), ("openai_responses", "input"), ("google", "contents")],
)
def test_what_cannot_be_shown_is_named_as_the_dialect_names_it(provider: ProviderName, field: str) -> None:
    request = ChatRequest(provider, "m", (Message("user", (ImagePart("image/png", "aGk="),)),))
    found = EpisodeLineage().find(request.messages, seed_of(None, None, None))
    for refused in (lambda: make_prompt(tiny(), request, found, "template"), lambda: render_prompt(tiny(), request)):
        with pytest.raises(Unsupported, match=f"^{field}: the model cannot see images$") as raised:
            refused()
        assert raised.value.field == field


def test_a_plain_prompt_is_taken_as_it_is() -> None:
    seed = seed_of(None, tiny().tokenizer_hash, tiny().template_hash)
    found = EpisodeLineage().find((), seed)
    for prompt, ids in (("Hi<|im_end|>", tiny().encode("Hi<|im_end|>").tolist()), ((5, 6), [5, 6])):
        made = make_prompt(tiny(), ChatRequest("openai_chat", "m", (), prompt=prompt), found, "template")
        assert (made.ids.tolist(), made.parent, made.shared_len, made.fork_reason) == (ids, None, 0, None)
    with pytest.raises(InvalidRequest, match="empty"):
        make_prompt(tiny(), ChatRequest("openai_chat", "m", (), prompt=""), found, "template")


def test_a_seed_is_of_tools_tokenizer_and_template() -> None:
    assert seed_of(b"t", "a", "b") == seed_of(b"t", "a", "b")
    assert (
        len({seed_of(b"t", "a", "b"), seed_of(None, "a", "b"), seed_of(b"t", "x", "b"), seed_of(b"t", "a", "x")}) == 4
    )
