"""From sampled ids to reasoning, text and tool calls, while they arrive.

One state machine makes both the streamed deltas and the final parse, so they agree whatever the chunks: the joined
deltas are exactly ``ParsedReply.reasoning`` and ``ParsedReply.text``. Rules:

- Structure is found by token id, never by text that looks like a marker. Everything from the first stop id on is no
  part of the reply.
- Reasoning is what follows an opening marker with nothing but white space before it, or follows a prompt that opened
  it. It ends at the first closing marker, or where a tool call begins and no closing marker follows. It is stripped.
- Text follows. White space between reasoning and text, and between text and a tool call, belongs to the template and is
  dropped; otherwise text is as sampled, special tokens left out.
- From the first tool marker on everything is tool calls; what stands between and after them is dropped.
- The first stop string to be completed ends the reply, and its text before the string.

A delta is held back while what comes next could still change it: a character whose bytes are not all there, white
space at the end, the possible beginning of a stop string, a tool marker inside reasoning.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from dragoman.addons.messages import ReasoningDelta, TextDelta
from dragoman.addons.tool_calls import ParsedCall
from dragoman.store.records import JsonObject

Delta = ReasoningDelta | TextDelta
_REPLACEMENT = "�"
"""What decoding makes of bytes that are no character, or not yet one."""
_NOT_SPACE = re.compile(r"\S")


@dataclass(frozen=True, slots=True)
class ParsedReply:
    reasoning: str | None
    """``None``: there is none, or it is empty."""
    text: str
    tool_calls: tuple[ParsedCall, ...]
    """Every attempt in order, malformed ones too."""


@dataclass(frozen=True, slots=True)
class Grammar:
    """How a model marks the parts of its reply."""

    decode: Callable[[Sequence[int]], str]
    """Ids to text without special tokens."""
    stop_ids: frozenset[int]
    think: int | None
    """Id that opens reasoning; ``None``: the model has no such token."""
    think_end: int | None
    tool: int | None
    """Id that opens the first tool call; ``None``: no tool calls are looked for."""
    read_calls: Callable[[Sequence[int], list[JsonObject]], tuple[ParsedCall, ...]]
    """The calls in ids that begin with ``tool``; some formats need the tools to tell the type of an argument."""

    def opens_reasoning(self, prompt_ids: Sequence[int]) -> bool:
        """Whether the prompt ends inside reasoning, so that the reply begins there."""
        if self.think is None:
            return False
        for token in reversed(prompt_ids):
            if token == self.think:
                return True
            if token == self.think_end or token in self.stop_ids:
                return False
        return False


class _Decoder:
    """Decodes ids as they arrive; every id is decoded a bounded number of times.

    Text is given out up to the last point where it does not end in a broken character. Decoding goes on from the point
    before that one, because some decoders treat the start of a text in their own way.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._given: list[int] = []  # the ids of the last text given out
        self._given_text = ""
        self._pending: list[int] = []
        self._try_at = 1

    def push(self, token: int) -> None:
        self._pending.append(token)

    def take(self, *, all_of_it: bool = False) -> str:
        """The text that has become certain; with ``all_of_it`` also what ends in a broken character."""
        if not self._pending or (len(self._pending) < self._try_at and not all_of_it):
            return ""
        text = self._decode(self._given + self._pending)
        if text.endswith(_REPLACEMENT) and not all_of_it:
            self._try_at = 2 * len(self._pending) if len(self._pending) > 8 else 1  # so that garbage costs no more
            return ""
        new = text[len(self._given_text) :]
        self._given, self._pending, self._try_at = self._pending, [], 1
        self._given_text = self._decode(self._given)
        return new


class _Channel:
    """One part of the reply (reasoning or text): decoded, cut at a stop string, stripped, given out when certain."""

    def __init__(
        self,
        decode: Callable[[Sequence[int]], str],
        stop: tuple[str, ...],
        *,
        strip_start: bool = False,
        strip_end: bool = False,
    ) -> None:
        self._decoder = _Decoder(decode)
        self._stop = stop
        self._strip_start = strip_start
        self._strip_end = strip_end
        self._held = ""  # decoded, not given out
        self._given: list[str] = []
        self.stopped_by: str | None = None
        """The stop string that was completed; nothing after it counts."""

    @property
    def text(self) -> str:
        """Everything given out so far; all of the part once it is closed."""
        return "".join(self._given)

    def push(self, token: int) -> None:
        self._decoder.push(token)

    def take(self) -> str:
        """What is certain and was not given out before."""
        self._add(self._decoder.take())
        certain = self._held if self.stopped_by is not None else self._held[: self._stop_may_begin()]
        return self._give(len(certain.rstrip()))

    def close(self, *, call_follows: bool = False) -> str:
        """The rest: no more ids come. White space before a tool call is dropped."""
        self._add(self._decoder.take(all_of_it=True))
        strip_end = self._strip_end or (call_follows and self.stopped_by is None)
        text = self._give(len(self._held.rstrip() if strip_end else self._held))
        self._held = ""
        return text

    def _add(self, text: str) -> None:
        if self.stopped_by is not None or not text:
            return
        self._held += text
        if found := _first_stop(self._held, self._stop):
            at, self.stopped_by = found
            self._held = self._held[:at]

    def _stop_may_begin(self) -> int:
        """Where the end of the held text could be the beginning of a stop string; its length if nowhere."""
        longest = max((len(stop) for stop in self._stop), default=1)
        for at in range(max(0, len(self._held) - longest + 1), len(self._held)):
            if any(stop.startswith(self._held[at:]) for stop in self._stop):
                return at
        return len(self._held)

    def _give(self, length: int) -> str:
        text, self._held = self._held[:length], self._held[length:]
        if self._strip_start:
            text = text.lstrip()
            self._strip_start = not text
        if text:
            self._given.append(text)
        return text


class TextStream:
    """The reply to one prompt: ``feed`` ids as they arrive, then ``finish``."""

    def __init__(
        self,
        grammar: Grammar,
        prompt_ids: Sequence[int],
        *,
        tools: list[JsonObject] | None = None,
        stop: tuple[str, ...] = (),
        parse_whole: Callable[[Sequence[int]], ParsedReply] | None = None,
    ) -> None:
        """``tools``: those offered, as the template took them. ``parse_whole``: how to parse all ids of a model whose
        format only its renderer knows; then nothing is given out before the end. ``None``: the rules above hold.
        """
        self._grammar = grammar
        self._offered = tools or []
        self._stop = stop
        self._parse_whole = parse_whole
        self._state: Literal["lead", "reasoning", "text", "tools"]
        if grammar.opens_reasoning(prompt_ids):
            self._state = "reasoning"
        else:
            self._state = "lead" if grammar.think is not None else "text"
        self._ended = False  # by a stop id or a stop string
        self._reasoning = _Channel(grammar.decode, stop, strip_start=True, strip_end=True)
        self._text = _Channel(grammar.decode, stop)
        self._undecided: list[int] = []  # white space that reasoning may follow; or a tool call inside reasoning
        self._tools: list[int] = []
        self._whole: list[int] = []
        self._result: tuple[ParsedReply, str | None] | None = None

    def feed(self, ids: Sequence[int]) -> tuple[Delta, ...]:
        """What has become certain with ``ids``; often nothing."""
        deltas: list[Delta] = []
        for token in ids:
            if token in self._grammar.stop_ids:
                self._ended = True
            if self._ended:
                break
            if self._parse_whole is not None:
                self._whole.append(token)
            else:
                self._step(token, deltas)
        if not self._ended:
            deltas.append(ReasoningDelta(self._reasoning.take()))
            deltas.append(TextDelta(self._text.take()))
            self._ended = self._stop_sequence() is not None
        return tuple(delta for delta in deltas if delta.text)

    def finish(self) -> tuple[tuple[Delta, ...], ParsedReply, str | None]:
        """No more ids come.

        Returns:
            The last deltas, the reply, and the stop string that ended it, if one did. Called again: the same without
            deltas.
        """
        if self._result is not None:
            return (), *self._result
        deltas: list[Delta] = []
        if self._parse_whole is None:
            parsed, stop_sequence = self._close(deltas), self._stop_sequence()
        else:
            parsed, stop_sequence = _cut(self._parse_whole(self._whole), self._stop)
            deltas = [ReasoningDelta(parsed.reasoning or ""), TextDelta(parsed.text)]
        self._result = parsed, stop_sequence
        return tuple(delta for delta in deltas if delta.text), parsed, stop_sequence

    def _step(self, token: int, deltas: list[Delta]) -> None:
        grammar = self._grammar
        match self._state:
            case "lead":
                if token == grammar.think:
                    self._undecided.clear()
                    self._state = "reasoning"
                elif _NOT_SPACE.search(grammar.decode([token])):
                    self._begin_text(token, deltas)
                else:
                    self._undecided.append(token)
            case "reasoning":
                if token == grammar.think_end:
                    self._end_reasoning(deltas)
                elif token == grammar.tool or self._undecided:
                    self._undecided.append(token)
                elif token != grammar.think:
                    self._reasoning.push(token)
            case "text":
                if token == grammar.tool:
                    deltas.append(TextDelta(self._text.close(call_follows=True)))
                    self._ended = self._stop_sequence() is not None
                    self._tools.append(token)
                    self._state = "tools"
                else:
                    self._text.push(token)
            case "tools":
                self._tools.append(token)

    def _begin_text(self, token: int, deltas: list[Delta]) -> None:
        self._state = "text"
        for waiting in self._undecided:
            self._text.push(waiting)
        self._undecided.clear()
        self._step(token, deltas)

    def _end_reasoning(self, deltas: list[Delta]) -> None:
        for waiting in self._undecided:  # a tool call that turned out to be a thought
            if waiting != self._grammar.think:
                self._reasoning.push(waiting)
        self._undecided.clear()
        deltas.append(ReasoningDelta(self._reasoning.close()))
        self._ended = self._stop_sequence() is not None
        self._text = _Channel(self._grammar.decode, self._stop, strip_start=True)
        self._state = "text"

    def _close(self, deltas: list[Delta]) -> ParsedReply:
        if self._state == "lead":
            for waiting in self._undecided:
                self._text.push(waiting)
        elif self._state == "reasoning":
            self._tools = self._undecided
        deltas.append(ReasoningDelta(self._reasoning.close()))
        deltas.append(TextDelta(self._text.close()))
        calls: tuple[ParsedCall, ...] = ()
        if self._tools and self._stop_sequence() is None:
            calls = self._grammar.read_calls(self._tools, self._offered)
        return ParsedReply(self._reasoning.text or None, self._text.text, calls)

    def _stop_sequence(self) -> str | None:
        return self._reasoning.stopped_by or self._text.stopped_by


def _first_stop(text: str, stop: tuple[str, ...]) -> tuple[int, str] | None:
    """Where the stop string that is complete first begins, and which it is."""
    found = [(at + len(one), at, one) for one in stop if (at := text.find(one)) >= 0]
    return min(found)[1:] if found else None


def _cut(parsed: ParsedReply, stop: tuple[str, ...]) -> tuple[ParsedReply, str | None]:
    """End a parsed reply at its first stop string; also returns that string."""
    if parsed.reasoning and (found := _first_stop(parsed.reasoning, stop)):
        return ParsedReply(parsed.reasoning[: found[0]].strip() or None, "", ()), found[1]
    if found := _first_stop(parsed.text, stop):
        return ParsedReply(parsed.reasoning, parsed.text[: found[0]], ()), found[1]
    return parsed, None
