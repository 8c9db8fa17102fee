"""Bridges over the template families: exact where the template would write the same, else a fork with its reason.

``TABLE`` says what must come out. Each cell is one reply and the messages after it:

=  the next prompt begins with the stream, and its text is the template's own rendering of the whole conversation
~  the same but for an empty thinking block, which some templates write only in the prompt or only in the last reply
P  ``thinking_policy``: the template drops reasoning that the stream holds
T  ``template``: the template drops, moves or changes something else that the stream holds
C  ``no_close``: the stream ends in a way in which the template does not end a reply
X  the template refuses such a conversation
-  models of this line do not write so

Rows say where the reasoning is: ``none``; an ``empty`` block that the model wrote itself; in the ``last`` reply; in an
``earlier`` reply of the same tool cycle; or ``before`` the last question. What stands out:

- Qwen3, Qwen3.5, GLM and Gemma drop reasoning once there is a new question; DeepSeek drops it at once, as does Llama 3,
  which has none.
- Qwen3.5 and DeepSeek-R1 open the thinking in the prompt and leave an empty block out of earlier replies; GLM-5 leaves
  its end there.
- GLM ends a reply with the next speaker's marker, ``<|user|>`` or ``<|observation|>``; ahead of a system message the
  template writes another.
- Gemma writes a reply's text behind the tool results that the reply's call got, and Llama 3 writes no text beside a
  call, and only one call.
- DeepSeek's template moves every system message to the start, and forgets ``tool outputs end`` before the next call.
- Qwen3.5 refuses a system message that is not the first; it gets a user message instead.
"""

import re
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.addons.bridge import Behind, Thinking, bridge, probe
from dragoman.addons.errors import Unsupported
from dragoman.addons.messages import Message, Part, ReasoningPart, TextPart, Tool, ToolCallPart, ToolResultPart
from dragoman.addons.template_messages import template_messages, template_tools
from dragoman.addons.tokens import TokenCodec
from dragoman.store.records import TokenIds
from dragoman.trainer.tiny_model import TEMPLATE
from tests.addons.templates.families import FAMILIES, Family, codec, load

TABLE = """
family              reasoning  text tool text,tool parallel tool+text cut system cut-thinking
chatml              none        =    =      =         =        =      =     =        -
chatml              empty       ~    ~      ~         ~        ~      ~     ~        -
chatml              last        =    =      =         =        =      =     =        C
chatml              earlier     =    =      =         =        =      =     =        -
chatml              before      =    =      =         =        =      =     =        -
qwen3               none        =    =      =         =        =      =     =        -
qwen3               empty       ~    ~      ~         ~        ~      ~     ~        -
qwen3               last        P    =      =         =        P      P     P        P
qwen3               earlier     P    =      =         =        P      P     P        -
qwen3               before      =    =      =         =        =      =     =        -
qwen3-by-hand       none        =    =      =         =        =      =     =        -
qwen3-by-hand       empty       ~    ~      ~         ~        ~      ~     ~        -
qwen3-by-hand       last        P    =      =         =        P      P     P        P
qwen3-by-hand       earlier     P    =      =         =        P      P     P        -
qwen3-by-hand       before      =    =      =         =        =      =     =        -
qwen3.5             none        ~    =      =         =        ~      ~     ~        -
qwen3.5             last        P    =      =         =        P      P     P        P
qwen3.5             earlier     P    =      =         =        P      P     P        -
qwen3.5             before      ~    =      =         =        ~      ~     ~        -
qwen3.5-by-hand     none        ~    =      =         =        ~      ~     ~        -
qwen3.5-by-hand     last        P    =      =         =        P      P     P        P
qwen3.5-by-hand     earlier     P    =      =         =        P      P     P        -
qwen3.5-by-hand     before      ~    =      =         =        ~      ~     ~        -
qwen3.5-no-think    none        ~    =      =         =        ~      ~     ~        -
llama-3             none        =    =      T         X        =      =     =        -
llama-3             last        P    P      P         X        P      P     P        -
llama-3             earlier     =    =      T         X        =      =     =        -
llama-3-by-hand     none        =    =      T         X        =      =     =        -
llama-3-by-hand     last        P    P      P         X        P      P     P        -
llama-3-by-hand     earlier     =    =      T         X        =      =     =        -
gemma-4             none        =    =      T         =        =      =     =        -
gemma-4             empty       ~    ~      T         ~        ~      ~     ~        -
gemma-4             last        P    =      T         =        P      P     P        -
gemma-4             earlier     P    =      T         =        P      P     P        -
gemma-4             before      =    =      T         =        =      =     =        -
gemma-4-by-hand     none        =    =      T         =        =      =     =        -
gemma-4-by-hand     empty       ~    ~      T         ~        ~      ~     ~        -
gemma-4-by-hand     last        P    =      T         =        P      P     P        P
gemma-4-by-hand     earlier     P    =      T         =        P      P     P        -
gemma-4-by-hand     before      =    =      T         =        =      =     =        -
glm-4.5             none        =    =      =         =        =      =     C        -
glm-4.5             last        P    =      =         =        P      P     P        P
glm-4.5             earlier     P    =      =         =        P      P     P        -
glm-4.5             before      =    =      =         =        =      =     C        -
glm-4.5-by-hand     none        =    =      =         =        =      =     C        -
glm-4.5-by-hand     last        P    =      =         =        P      P     P        P
glm-4.5-by-hand     earlier     P    =      =         =        P      P     P        -
glm-4.5-by-hand     before      =    =      =         =        =      =     C        -
glm-5-by-hand       none        ~    ~      ~         ~        ~      ~     C        -
glm-5-by-hand       last        P    =      =         =        P      P     P        P
glm-5-by-hand       earlier     P    ~      ~         ~        P      P     P        -
glm-5-by-hand       before      ~    ~      ~         ~        ~      ~     C        -
deepseek-r1         none        ~    ~      ~         ~        ~      ~     T        -
deepseek-r1         last        P    P      P         P        P      P     P        P
deepseek-r1         earlier     =    T      T         T        T      =     T        -
deepseek-r1         before      ~    ~      ~         ~        ~      ~     T        -
deepseek-r1-by-hand none        ~    ~      ~         ~        ~      ~     ~        -
deepseek-r1-by-hand last        P    P      P         P        P      P     P        P
deepseek-r1-by-hand earlier     ~    ~      ~         ~        ~      ~     ~        -
deepseek-v3-by-hand none        =    =      =         =        =      =     =        -
deepseek-v3-by-hand earlier     =    =      =         =        =      =     =        -
"""
REASONS = {"P": "thinking_policy", "T": "template", "C": "no_close", "X": "template"}
TOOLS = tuple(
    Tool(name, f"To {name}.", {"type": "object", "properties": {"at": {"type": "string"}}})
    for name in ("look", "touch")
)


def user(text: str) -> Message:
    return Message("user", (TextPart(text),))


def call(number: int) -> ToolCallPart:
    return ToolCallPart(f"call_{number}", TOOLS[number % 2].name, '{"at": "the end"}')


def results(*numbers: int) -> Message:
    return Message("tool", tuple(ToolResultPart(f"call_{n}", (TextPart(f" result\n{n} "),)) for n in numbers))


def says(*parts: Part) -> Message:
    return Message("assistant", parts)


@dataclass(frozen=True, slots=True)
class Reply:
    text: str
    calls: tuple[ToolCallPart, ...] = ()
    cut: bool = False


KINDS: dict[str, tuple[Reply, tuple[Message, ...]]] = {
    "text": (Reply("An answer."), (user(" And then?\n"),)),
    "tool": (Reply("", (call(2),)), (results(2),)),
    "text,tool": (Reply("I look.", (call(2),)), (results(2),)),
    "parallel": (Reply("", (call(2), call(3))), (results(2, 3),)),
    "tool+text": (Reply("", (call(2),)), (results(2), user("Go on."))),
    "cut": (Reply("An answ", cut=True), (user("Go on."),)),
    "system": (Reply("An answer."), (Message("system", (TextPart("A rule."),)), user("And then?"))),
    "cut-thinking": (Reply("", cut=True), (user("Go on."),)),
}
ASKED = (Message("system", (TextPart("Be brief."),)), user("What is it?"))
HISTORIES = {
    "earlier": (*ASKED, says(ReasoningPart("Hm, earlier."), call(0)), results(0)),
    "before": (*ASKED, says(ReasoningPart("Hm, before."), TextPart("This.")), user("What else?")),
}


def cells() -> list[tuple[str, str, str, str]]:
    header, *rows = (line.split() for line in TABLE.strip().splitlines())
    return [
        (row[0], row[1], kind, outcome)
        for row in rows
        for kind, outcome in zip(header[2:], row[2:], strict=True)
        if outcome != "-"
    ]


def plain(text: str) -> str:
    """Without empty thinking blocks."""
    return re.sub(r"(<think>\s*)?</think>\s*|<\|channel>thought\s*<channel\|>", "", text)


@dataclass(frozen=True, slots=True)
class Case:
    """A sampled reply, and what comes after it."""

    codec: TokenCodec
    behind: Behind
    new: tuple[Message, ...]

    @property
    def stream(self) -> TokenIds:
        return np.concatenate([self.behind.prompt_ids, self.behind.completion_ids])

    def bridge(self, thinking: Thinking = "template") -> TokenIds | str:
        return bridge(self.codec, self.behind, self.new, TOOLS, thinking)

    def rendered(self) -> str:
        """The template's own text of the whole conversation."""
        return self.codec.render_text((*self.behind.history, *self.new), TOOLS)


@cache
def make_case(name: str, reasoning: str, kind: str) -> Case:
    family, used = load(name)
    reply, new = KINDS[kind]
    history = HISTORIES.get(reasoning, ASKED)
    prompt = used.render(history, TOOLS)
    thought = {"empty": "", "last": "Hm."}.get(reasoning)
    parts: list[Part] = [ReasoningPart(thought)] if thought else []
    sampled = family.reply(thought, reply.text, reply.calls, prompt=used.decode(prompt), cut=reply.cut)
    if kind == "cut-thinking":
        sampled = sampled[: sampled.index("Hm.") + 2]
        parts = [ReasoningPart("Hm")]
    parts += [TextPart(reply.text)] if reply.text else []
    return Case(used, Behind(prompt, used.encode(sampled), (*history, says(*parts, *reply.calls))), new)


def test_the_table_is_of_all_families() -> None:
    assert list(dict.fromkeys(name for name, *_ in cells())) == list(FAMILIES)


@pytest.mark.parametrize(("name", "reasoning", "kind", "outcome"), cells())
def test_a_bridge_or_a_named_fork(name: str, reasoning: str, kind: str, outcome: str) -> None:
    case = make_case(name, reasoning, kind)
    bridged = case.bridge()
    if outcome == "X":
        assert bridged == "template"
        with pytest.raises(Unsupported, match="refused the conversation"):
            case.rendered()
        return
    rendered, stream = case.rendered(), case.stream
    if isinstance(bridged, str):
        assert bridged == REASONS[outcome]
        # a fork is never for nothing; a cut thought is of unknown end
        assert kind == "cut-thinking" or not plain(rendered).startswith(plain(case.codec.decode(stream)))
        return
    assert bridged[: len(stream)].tolist() == stream.tolist()
    text = case.codec.decode(bridged)
    if outcome == "=":
        assert text == rendered
        assert bridged.tolist() == case.codec.render((*case.behind.history, *case.new), TOOLS).tolist()
    else:
        assert outcome == "~"
        assert text != rendered
        assert plain(text) == plain(rendered)


@pytest.mark.parametrize(("name", "reasoning", "kind", "outcome"), cells())
def test_with_thinking_kept_reasoning_alone_is_no_reason_to_fork(
    name: str, reasoning: str, kind: str, outcome: str
) -> None:
    case = make_case(name, reasoning, kind)
    bridged = case.bridge("keep")
    if kind == "cut-thinking":
        assert bridged == "no_close"
    elif not isinstance(bridged, str):
        stream = case.stream
        assert bridged[: len(stream)].tolist() == stream.tolist()
        assert case.rendered().endswith(case.codec.decode(bridged[len(stream) :]))
    else:
        without = next((code for row in cells() if row[:3] == (name, "none", kind) for code in row[3:]), "")
        assert bridged == REASONS[without if outcome == "P" else outcome]


NO_REASONING = ("qwen3.5-no-think", "llama-3", "llama-3-by-hand", "deepseek-v3-by-hand")


@pytest.mark.parametrize("name", FAMILIES)
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_a_conversation_of_any_shape_is_exact_or_forks_for_a_reason(name: str, data: st.DataObject) -> None:
    """Turn by turn, so that what a bridge adds is what the next one builds on."""
    family, used = load(name)
    history: tuple[Message, ...] = ASKED
    prompt = used.render(history, TOOLS)
    for turn in range(data.draw(st.integers(1, 6))):
        count = data.draw(st.sampled_from([0, 0, 1, 1, 2]))
        calls = tuple(replace(call(number), id=f"call_{turn}_{number}") for number in range(count))
        text = (
            data.draw(st.sampled_from(["An answer.", "Two\n\nlines"])) if not calls or data.draw(st.booleans()) else ""
        )
        thought = None if name in NO_REASONING else data.draw(st.sampled_from([None, "Hm.", "Hm,\nwell."]))
        sampled = used.encode(family.reply(thought, text, calls, prompt=used.decode(prompt)))
        parts: list[Part] = [ReasoningPart(thought)] if thought else []
        parts += [TextPart(text)] if text else []
        new = [Message("tool", tuple(ToolResultPart(c.id, (TextPart("found"),)) for c in calls))] if calls else []
        if not calls or data.draw(st.booleans()):
            new.append(user("And then?"))
        said = (*history, says(*parts, *calls))
        bridged = bridge(used, Behind(prompt, sampled, said), tuple(new), TOOLS, "template")
        history = (*said, *new)
        try:
            whole = used.render_text(history, TOOLS)
        except Unsupported:
            assert bridged == "template"
            return
        if isinstance(bridged, str):
            assert not plain(whole).startswith(plain(used.decode(np.concatenate([prompt, sampled]))))
            prompt = used.render(history, TOOLS)
        else:
            assert plain(used.decode(bridged)) == plain(whole)
            prompt = bridged


@pytest.mark.parametrize("name", [name for name, (_, renderer, _) in FAMILIES.items() if renderer != "template"])
def test_a_renderers_own_bridge_adds_nothing(name: str) -> None:
    """Why it is not asked: it gives the same ids, or none, or goes on where its own full rendering says otherwise."""
    compared = 0
    for row in cells():
        if row[0] != name or row[3] == "X":
            continue
        case = make_case(*row[:3])
        shown = template_messages((*case.behind.history, *case.new))[len(template_messages(case.behind.history)) :]
        own = case.codec._renderer.bridge_to_next_turn(
            case.behind.prompt_ids.tolist(), case.behind.completion_ids.tolist(), shown, tools=template_tools(TOOLS)
        )
        if own is None:
            continue
        compared += 1
        bridged = case.bridge()
        if isinstance(bridged, str):
            assert plain(case.codec.decode(own.token_ids)) != plain(case.rendered())
        else:
            assert bridged.tolist() == list(own.token_ids)
    assert compared or name == "deepseek-r1-by-hand", "it never bridges"


# -- what models and templates do besides ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "kind", "end"),
    [("chatml", "text", "<|endoftext|>"), ("glm-4.5", "tool", "<|user|>"), ("gemma-4", "tool", "<eos>")],
)
def test_an_end_that_the_template_would_not_write_is_no_close(name: str, kind: str, end: str) -> None:
    case = make_case(name, "none", kind)
    other = np.concatenate([case.behind.completion_ids[:-1], case.codec.encode(end)])
    behind = Behind(case.behind.prompt_ids, other, case.behind.history)
    assert bridge(case.codec, behind, case.new, TOOLS, "template") == "no_close"


@pytest.mark.parametrize("name", ["chatml", "qwen3.5-no-think", "glm-4.5", "gemma-4", "llama-3"])
def test_what_a_template_would_tidy_up_in_a_reply_stays_as_sampled(name: str) -> None:
    """White space at the ends: the model wrote it so, and nothing of the template is lost."""
    family, used = load(name)
    prompt = used.render(ASKED, TOOLS)
    sampled = family.reply("", "  An answer. \n\n", (), prompt=used.decode(prompt))
    behind = Behind(prompt, used.encode(sampled), (*ASKED, says(TextPart("An answer."))))
    bridged = bridge(used, behind, (user("And then?"),), TOOLS, "template")
    assert not isinstance(bridged, str)
    assert used.decode(bridged).startswith(used.decode(prompt) + sampled)
    assert used.render_text((*behind.history, user("And then?")), TOOLS).endswith(
        used.decode(bridged[len(prompt) + len(behind.completion_ids) :])
    )


def test_a_call_that_was_cut_or_is_broken_stays_as_sampled() -> None:
    _, used = load("qwen3")
    prompt = used.render(ASKED, TOOLS)
    for sampled in (
        '<tool_call>\n{"name": "look", "argu',
        '<tool_call>\n{"name": "look", "arguments": {\n</tool_call>',
    ):
        for end in ("", "<|im_end|>"):
            history = (*ASKED, says(ToolCallPart("call_2", "look", '{"broken')))
            bridged = bridge(
                used, Behind(prompt, used.encode(sampled + end), history), (results(2),), TOOLS, "template"
            )
            assert not isinstance(bridged, str)
            expected = (
                f"{sampled}<|im_end|>\n<|im_start|>user\n<tool_response>\n result\n2 \n</tool_response><|im_end|>\n"
            )
            assert used.decode(bridged) == used.decode(prompt) + expected + "<|im_start|>assistant\n"


@pytest.mark.parametrize("name", FAMILIES)
def test_a_broken_call_can_be_bridged_and_shown_again(name: str) -> None:
    """A harness that replays it as it was must not be refused, in a fork neither."""
    _, used = load(name)
    broken = replace(call(2), arguments='{"at": "the')
    case = make_case(name, "none", "tool")
    history = (*ASKED, says(broken))
    assert not isinstance(bridge(used, replace(case.behind, history=history), case.new, TOOLS, "template"), str)
    assert broken.name in used.decode(used.render((*history, *case.new), TOOLS))


CHATML = FAMILIES["chatml"][0]
MESSAGES = (
    "{% for m in messages %}<|im_start|>{{ m.role }} {{ m.content }}{{ m.tool_calls or '' }}<|im_end|>{% endfor %}"
)
TURN = "{% if add_generation_prompt %}<|im_start|>assistant {% endif %}"


def outcome(template: str, kind: str, *, family: Family = CHATML, end: str = "<|im_end|>") -> str:
    """What becomes of a reply with this template: ``=``, ``differs``, or the reason."""
    used = codec(family, "template", template)
    reply, new = KINDS[kind]
    prompt = used.render(ASKED, TOOLS)
    history = (*ASKED, says(*([TextPart(reply.text)] if reply.text else []), *reply.calls))
    whole = used.render_text(history, TOOLS, add_generation_prompt=False)
    shown = whole[len(used.decode(prompt)) :].partition("<|im_end|>")[0].removesuffix(" (end)").rstrip()
    bridged = bridge(used, Behind(prompt, used.encode(shown + end), history), new, TOOLS, "template")
    if isinstance(bridged, str):
        return bridged
    return "=" if used.decode(bridged) == used.render_text((*history, *new), TOOLS) else "differs"


def test_tools_that_stand_before_the_last_user_message_move() -> None:
    template = (
        "{% set last = namespace(said='') %}"
        "{% for m in messages if m.role == 'user' %}{% set last.said = m.content %}{% endfor %}"
        "{% for m in messages %}"
        "{% if tools and m.content == last.said %}<|im_start|>tools {{ tools }}<|im_end|>{% endif %}"
        "<|im_start|>{{ m.role }} {{ m.content }}{{ m.tool_calls or '' }}<|im_end|>"
        "{% endfor %}"
    ) + TURN
    assert outcome(template, "text") == "template"
    assert outcome(template, "tool") == "="
    assert outcome(template, "tool+text") == "template"


def test_tools_that_are_shown_again_with_every_user_message() -> None:
    template = (
        MESSAGES.replace("{{ m.content }}", "{{ m.content }}{% if m.role == 'user' %}{{ tools }}{% endif %}") + TURN
    )
    assert outcome(template, "text") == "template", "their words are not in the outline"
    assert outcome(template, "tool") == "="


def test_a_template_that_ends_no_reply() -> None:
    template = MESSAGES.replace("<|im_end|>", "\n") + TURN
    assert outcome(template, "text", end="<|im_end|>") == "no_close"
    assert outcome(template, "text", end="") == "=", "a cut one goes on as the template does"
    nothing_else = "{% for m in messages if m.role == 'assistant' %}{{ m.content }}{% endfor %}"
    assert outcome(nothing_else, "text") == "no_close"


def test_a_template_that_closes_the_last_reply_otherwise() -> None:
    alone = "{% if loop.last and not add_generation_prompt %}"
    both = MESSAGES.replace("<|im_end|>", "<|im_end|>" + alone + "<|endoftext|>{% endif %}") + TURN
    assert outcome(both, "text") == "="
    other = MESSAGES.replace("<|im_end|>", alone + "<|im_end|>{% else %}<|endoftext|>{% endif %}") + TURN
    assert outcome(other, "text") == "template"


def test_a_template_that_writes_calls_before_text() -> None:
    template = MESSAGES.replace("{{ m.content }}{{ m.tool_calls or '' }}", "{{ m.tool_calls or '' }}{{ m.content }}")
    assert outcome(template + TURN, "text,tool") == "template"
    assert outcome(template + TURN, "tool") == "="


def test_what_a_template_writes_before_the_close_goes_to_a_cut_reply() -> None:
    template = MESSAGES.replace("<|im_end|>", " (end)<|im_end|>") + TURN
    assert outcome(template, "cut", end="") == "="


def test_a_tokenizer_that_treats_the_start_of_a_text_in_its_own_way() -> None:
    used = codec(CHATML, "template", TEMPLATE.read_text(), pieces=True)
    assert used.encode("x").tolist() != used.encode("<|im_end|>x").tolist()[1:]
    prompt = used.render(ASKED, TOOLS)
    history = (*ASKED, says(TextPart("An answer.")))
    completion = used.encode("<|im_start|>An answer.<|im_end|>")[1:]
    bridged = bridge(used, Behind(prompt, completion, history), (user("And then?"),), TOOLS, "template")
    assert not isinstance(bridged, str)
    assert bridged.tolist() == used.render((*history, user("And then?")), TOOLS).tolist()


def test_white_space_beside_a_call_is_no_text() -> None:
    """Gemma writes a reply's text behind its tool results, but of this there is none."""
    case = make_case("gemma-4", "none", "tool")
    (*asked, reply) = case.behind.history
    history = (*asked, says(TextPart(" \n"), *reply.parts))
    behind = Behind(case.behind.prompt_ids, case.behind.completion_ids, history)
    assert not isinstance(bridge(case.codec, behind, case.new, TOOLS, "template"), str)


def test_an_end_that_is_no_token_is_passed_over() -> None:
    case = make_case("chatml", "none", "text")
    used = replace(case.codec, stop_ids=(*case.codec.stop_ids, 10**6))
    expected = case.bridge()
    assert not isinstance(expected, str)
    bridged = bridge(used, case.behind, case.new, TOOLS, "template")
    assert not isinstance(bridged, str)
    assert bridged.tolist() == expected.tolist()


def test_a_template_that_leaves_calls_out() -> None:
    assert outcome(MESSAGES.replace("{{ m.tool_calls or '' }}", "") + TURN, "tool") == "template"
    assert outcome(MESSAGES.replace("{{ m.tool_calls or '' }}", "") + TURN, "text") == "="


def test_a_template_that_counts_the_messages() -> None:
    assert outcome("{{ messages | length }}" + MESSAGES + TURN, "text") == "template"


# -- the probe ------------------------------------------------------------------------------------------------------

DROPS_OLD_REASONING = {"text after reasoning": "thinking_policy"}
DROPS_ALL_REASONING = {**DROPS_OLD_REASONING, "tool result after reasoning": "thinking_policy"}
MOVES_TEXT = {"tool result after text and call": "template"}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("chatml", {}),
        ("qwen3", DROPS_OLD_REASONING),
        ("qwen3.5-by-hand", DROPS_OLD_REASONING),
        ("llama-3", {**DROPS_ALL_REASONING, **MOVES_TEXT, "parallel tool results": "refused"}),
        ("gemma-4", {**DROPS_OLD_REASONING, **MOVES_TEXT}),
        ("glm-5-by-hand", {**DROPS_OLD_REASONING, "system message": "no_close"}),
        ("deepseek-r1", {**DROPS_ALL_REASONING, "system message": "template"}),
    ],
)
def test_the_probe_names_what_falls_back_to_full_renders(name: str, expected: dict[str, str]) -> None:
    _, used = load(name)
    found = probe(used, "template")
    assert {kind: outcome for kind, outcome in found.items() if outcome != "exact"} == expected
    kept = {kind: outcome for kind, outcome in expected.items() if outcome != "thinking_policy"}
    assert {kind: outcome for kind, outcome in probe(used, "keep").items() if outcome != "exact"} == kept


def test_the_probe_sees_a_template_that_looks_at_the_words() -> None:
    template = MESSAGES.replace("<|im_end|>", " {{ messages[0].content | length }}<|im_end|>") + TURN
    assert probe(codec(CHATML, "template", template), "template")["text"] == "differs"
