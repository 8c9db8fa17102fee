"""The stream agrees with itself however it is cut, with plain decoding, and with the ``renderers`` package's parser."""

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.addons.messages import Message, ReasoningDelta, TextDelta, TextPart
from dragoman.addons.text_stream import Delta, ParsedReply, TextStream
from dragoman.addons.tokens import TokenCodec
from tests.models import smollm2_folder, tiny_model_folder

MARKERS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "<|im_start|>")
STOPS = ("\n\n", "stop", "op", "a", "é", "</think>", "the user", "🙂")
PIECES = (
    *(
        "\n",
        "\n\n",
        " ",
        "  ",
        "\t",
        "the",
        " user",
        " stop",
        "st",
        "op",
        "a",
        "é",
        "日本",
        "🙂",
        "�",
        "{",
        '"',
        "name",
    ),
    *(" to", ":", ",", ".", "Hello", "\u00a0", "\u200d", "assistant", "system", "e\u0301"),
)


@cache
def codec(model: str, renderer: str) -> TokenCodec:
    folder = tiny_model_folder() if model == "tiny" else smollm2_folder()
    return TokenCodec.load(str(folder), renderer=renderer)


def reply_ids(codec: TokenCodec) -> st.SearchStrategy[list[int]]:
    """Ids as a wild model samples them: words, markers, single bytes, now and then the end of the turn."""
    tokenizer = codec._tokenizer
    markers = [tokenizer.convert_tokens_to_ids(text) for text in MARKERS]
    pieces = sorted({int(token) for text in PIECES for token in codec.encode(text)})
    bytes_alone = sorted({int(token) for text in "é日🙂\x00\xa0�" for token in codec.encode(text)})
    token = st.one_of(
        st.sampled_from(pieces),
        st.sampled_from(markers),
        st.sampled_from(bytes_alone),
        st.integers(0, len(tokenizer) - 1),
    )
    call = st.sampled_from(
        (
            '<tool_call>\n{"name": "read", "arguments": {"path": "é 1.0"}}\n</tool_call>',
            '<tool_call>{"name": "read", "argum',
        )
    )
    block = st.one_of(st.lists(token, max_size=8), call.map(lambda text: [int(token) for token in codec.encode(text)]))
    body = st.lists(block, max_size=8).map(lambda blocks: [token for block in blocks for token in block])
    return st.tuples(body, st.sampled_from((0, 1, 3))).map(lambda pair: pair[0] + list(codec.stop_ids[:1]) * pair[1])


def joined(deltas: Sequence[Delta]) -> tuple[str, str]:
    reasoning = "".join(delta.text for delta in deltas if isinstance(delta, ReasoningDelta))
    text = "".join(delta.text for delta in deltas if isinstance(delta, TextDelta))
    return reasoning, text


def stream(opened: TextStream, ids: Sequence[int], cuts: Sequence[int]) -> tuple[list[Delta], ParsedReply, str | None]:
    """Feed ``ids`` in pieces of the sizes in ``cuts``, over and over."""
    deltas: list[Delta] = []
    at = number = 0
    while at < len(ids):
        size = cuts[number % len(cuts)]
        deltas += opened.feed(ids[at : at + size])
        at, number = at + size, number + 1
    last, parsed, stop_sequence = opened.finish()
    return [*deltas, *last], parsed, stop_sequence


def check_all_chunkings_agree(codec: TokenCodec, data: st.DataObject) -> None:
    ids = data.draw(reply_ids(codec))
    cuts = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))
    shown = codec.grammar.decode(ids)
    begins = st.sampled_from(range(len(shown) + 1))
    from_it = st.builds(lambda at, size: shown[at : at + size] or "x", begins, st.integers(1, 8))
    stop = tuple(data.draw(st.lists(st.one_of(st.sampled_from(STOPS), from_it), max_size=3, unique=True)))
    prompt = [
        int(token) for token in codec.encode(data.draw(st.sampled_from(("hello", "<think>\n", "<think></think>"))))
    ]
    whole = stream(codec.text_stream(prompt, (), stop=stop), ids, [len(ids) + 1])
    deltas, parsed, stop_sequence = stream(codec.text_stream(prompt, (), stop=stop), ids, cuts)
    assert joined(deltas) == (parsed.reasoning or "", parsed.text)
    assert all(delta.text for delta in deltas)
    assert [type(delta) for delta in deltas] == sorted(
        (type(delta) for delta in deltas), key=lambda kind: kind.__name__
    )
    assert (parsed, stop_sequence) == whole[1:]
    if stop_sequence is None:
        assert parsed == codec.parse(prompt, ids, ())
    else:
        assert stop_sequence in stop
        assert not parsed.tool_calls
        assert stop_sequence not in parsed.text + (parsed.reasoning or "")


@pytest.mark.parametrize("renderer", ["template", "qwen3"])
@given(data=st.data())
@settings(max_examples=400, deadline=None)
def test_all_chunkings_agree(renderer: str, data: st.DataObject) -> None:
    check_all_chunkings_agree(codec("tiny", renderer), data)


@pytest.mark.engine
@pytest.mark.parametrize("renderer", ["template", "qwen3"])
@given(data=st.data())
@settings(max_examples=400, deadline=None)
def test_all_chunkings_agree_smollm2(renderer: str, data: st.DataObject) -> None:
    check_all_chunkings_agree(codec("smollm2", renderer), data)


@given(ids=st.deferred(lambda: reply_ids(codec("tiny", "template"))), cuts=st.lists(st.integers(1, 5), min_size=1))
@settings(max_examples=300, deadline=None)
def test_plain_text_is_what_the_tokenizer_decodes(ids: list[int], cuts: list[int]) -> None:
    """An oracle that shares no code with the stream: all ids before the end, decoded at once."""
    used = codec("tiny", "template")
    deltas, parsed, _ = stream(used.text_stream([1], (), stop=(), plain=True), ids, cuts)
    end = next((at for at, token in enumerate(ids) if token in used.stop_ids), len(ids))
    assert parsed.text == used._tokenizer.decode(ids[:end], skip_special_tokens=True)
    assert joined(deltas) == ("", parsed.text)


@given(data=st.data())
@settings(max_examples=200, deadline=None)
def test_agrees_with_the_renderers_package(data: st.DataObject) -> None:
    """On replies that keep the format, up to white space at the ends of the text, which that parser always strips."""
    used = codec("tiny", "qwen3")
    words = st.text(alphabet="ab é\n{}.", max_size=12)
    reply = f"<think>\n{data.draw(words)}\n</think>\n\n" if data.draw(st.booleans()) else ""
    reply += data.draw(words)
    for value in data.draw(st.lists(words, max_size=3)):  # some are valid JSON, some are not
        reply += f'\n<tool_call>\n{{"name": "f", "arguments": {{"a": "{value}"}}}}\n</tool_call>'
    ids = [int(token) for token in used.encode(reply)]
    theirs = used._renderer.parse_response(ids)
    ours = used.parse([1], ids, ())
    assert (ours.reasoning, ours.text.strip()) == (theirs.reasoning_content, theirs.content)
    assert [call.status for call in ours.tool_calls] == [str(call.status) for call in theirs.tool_calls]
    for call, their_call in zip(ours.tool_calls, theirs.tool_calls, strict=True):
        assert call.raw == their_call.raw
        if call.status == "ok":
            assert (call.name, json.loads(call.arguments)) == (their_call.name, their_call.arguments)


@pytest.mark.parametrize(
    ("reply", "reasoning", "text", "calls"),
    [
        pytest.param("Hello there.\n", None, "Hello there.\n", [], id="text as sampled"),
        pytest.param("  Hello", None, "  Hello", [], id="white space without reasoning is text"),
        pytest.param("<think>\n so \n</think>\n\n Hello ", "so", "Hello ", [], id="reasoning stripped"),
        pytest.param(" \n<think>so</think>Hi", "so", "Hi", [], id="white space before reasoning"),
        pytest.param("<think></think>Hi", None, "Hi", [], id="empty reasoning"),
        pytest.param("<think>so", "so", "", [], id="reasoning cut off"),
        pytest.param("a <think>so</think>", None, "a <think>so</think>", [], id="a marker after text is text"),
        pytest.param("<think>a<think>b</think>c", "ab", "c", [], id="opened twice"),
        pytest.param("Let me.\n<tool_call>{}</tool_call>", None, "Let me.", [None], id="a call without a name"),
        pytest.param("\n<tool_call>\n", None, "", [None], id="an empty call"),
        pytest.param("<think>so <tool_call>{}</tool_call>", "so", "", [None], id="a call ends reasoning"),
        pytest.param("<think>so <tool_call>{}</think>Hi", "so <tool_call>{}", "Hi", [], id="a call within reasoning"),
        pytest.param('x<tool_call>{"name": "f"}', None, "x", ["f"], id="a call that is not closed"),
        pytest.param("Hi<|im_end|> there<tool_call>", None, "Hi", [], id="nothing counts after the end"),
        pytest.param("a<|im_start|>b", None, "ab", [], id="special tokens are no text"),
        pytest.param("", None, "", [], id="nothing"),
    ],
)
def test_parts(reply: str, reasoning: str | None, text: str, calls: list[str | None]) -> None:
    used = codec("tiny", "template")
    parsed = used.parse([1], used.encode(reply), ())
    assert (parsed.reasoning, parsed.text) == (reasoning, text)
    assert [call.name for call in parsed.tool_calls] == calls


def test_a_prompt_can_open_reasoning() -> None:
    used = codec("tiny", "template")
    ids = used.encode("so</think>Hi")
    assert used.parse(used.encode("<|im_start|>assistant\n<think>\n"), ids, ()).reasoning == "so"
    assert used.parse(used.encode("<think> <|im_end|>\n<|im_start|>assistant\n"), ids, ()).reasoning is None
    assert used.parse(used.encode("<think></think>"), ids, ()).reasoning is None


@pytest.mark.parametrize(
    ("reply", "stop", "shown", "sequence"),
    [
        pytest.param("one two three", ("two",), "one ", "two", id="in the text"),
        pytest.param("<think>one two", ("two",), "one", "two", id="in the reasoning"),
        pytest.param("abcdef", ("abcdef", "cd"), "ab", "cd", id="the one that is complete first"),
        pytest.param("abcdef", ("cd", "bcd"), "a", "bcd", id="the longer of two that end together"),
        pytest.param("one tw", ("two",), "one tw", None, id="only begun"),
        pytest.param("<think>x</think>\n\nHi", ("\n\n",), "x", "\n\n", id="between reasoning and text"),
        pytest.param('<tool_call>{"name": "two"}</tool_call>', ("two",), "", None, id="within a call"),
    ],
)
def test_stop_strings(reply: str, stop: tuple[str, ...], shown: str, sequence: str | None) -> None:
    used = codec("tiny", "template")
    ids = [int(token) for token in used.encode(reply)]
    _, parsed, stop_sequence = stream(used.text_stream([1], (), stop=stop), ids, [1])
    assert (parsed.reasoning or "") + parsed.text == shown
    assert stop_sequence == sequence


def test_text_is_given_out_while_it_arrives() -> None:
    used = codec("tiny", "template")
    opened = used.text_stream([1], (), stop=("END",))
    given = ""
    for number, token in enumerate(used.encode(" one two three EN four"), start=1):
        given += joined(opened.feed([int(token)]))[1]
        if number == 3:
            assert given == " one two three"
    assert given == " one two three EN four"


def test_a_character_is_given_out_whole() -> None:
    used = codec("tiny", "template")
    ids = [int(token) for token in used.encode("a🙂b")]
    assert len(ids) > 3, "the emoji must be several tokens for this test"
    opened = used.text_stream([1], (), stop=())
    assert [joined(opened.feed([token]))[1] for token in ids] == ["a", *[""] * (len(ids) - 3), "🙂", "b"]


@pytest.mark.parametrize("text", [" word" * 4000, "\n" * 4000, "🙂" * 1000, "<think> a" * 2000, "é\n" * 2000])
def test_cost_is_linear(text: str) -> None:
    used = codec("tiny", "template")
    ids = [int(token) for token in used.encode(text)]
    decoded = 0

    def counting(some: Sequence[int]) -> str:
        nonlocal decoded
        decoded += len(some)
        return used.grammar.decode(some)

    stream(TextStream(replace(used.grammar, decode=counting), [1]), ids, [1])
    assert decoded <= 8 * len(ids)


def test_broken_bytes_cost_no_more() -> None:
    """Bytes that never become a character: the text is held, and decoded again ever more rarely."""
    used = codec("tiny", "template")
    alone = used._tokenizer.convert_tokens_to_ids("Ł")  # byte-level BPE's spelling of a continuation byte
    decoded = 0

    def counting(some: Sequence[int]) -> str:
        nonlocal decoded
        decoded += len(some)
        return used.grammar.decode(some)

    _, parsed, _ = stream(TextStream(replace(used.grammar, decode=counting), [1]), [alone] * 4000, [1])
    assert parsed.text == "�" * 4000
    assert decoded <= 8 * 4000


def test_finish_again_gives_the_same() -> None:
    used = codec("tiny", "template")
    opened = used.text_stream([1], (), stop=())
    opened.feed([int(token) for token in used.encode("Hi ")])
    deltas, parsed, _ = opened.finish()
    assert deltas == (TextDelta(" "),)
    assert opened.finish() == ((), parsed, None)


def test_a_format_only_its_renderer_knows_is_held_to_the_end() -> None:
    def parse_whole(ids: Sequence[int]) -> ParsedReply:
        return ParsedReply("so", f"{len(ids)} ids, stop here", ())

    used = codec("tiny", "template")
    opened = TextStream(used.grammar, [1], stop=(" stop",), parse_whole=parse_whole)
    assert opened.feed([5, 6]) == ()
    assert opened.feed([7, used.stop_ids[0], 8]) == ()
    deltas, parsed, stop_sequence = opened.finish()
    assert joined(deltas) == ("so", "3 ids,") == (parsed.reasoning, parsed.text)
    assert stop_sequence == " stop"


def test_the_reply_to_a_rendered_prompt() -> None:
    used = codec("tiny", "template")
    prompt = used.render((Message("user", (TextPart("Think <think> about it"),)),), ())
    assert used.parse(prompt, used.encode("Hi"), ()).text == "Hi"
