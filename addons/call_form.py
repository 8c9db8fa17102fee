"""How the model being served writes its tool calls, read off a call that its own template wrote.

Rules of this module: nothing is assumed of a model line. A conversation with two made-up calls is rendered and taken
apart. A form is only known when each call stands between two single tokens and holds its arguments as JSON, or as the
``<parameter=…>`` elements of Qwen's XML; and when the codec reads back what the form says.
"""

import re
from dataclasses import dataclass
from typing import Literal

from dragoman.addons.errors import DragomanError
from dragoman.addons.messages import Message, TextPart, Tool, ToolCallPart
from dragoman.addons.tokens import TokenCodec

BEGIN, END = "<tool_call>", "</tool_call>"
_NAME = "probe_zq7"
_ARGUMENTS = re.compile(
    r'(?P<json>\{\s*"zq8"\s*:\s*"zq9"\s*\})|(?P<xml><parameter=zq8>\s*zq9\s*</parameter>)', re.DOTALL
)


@dataclass(frozen=True, slots=True)
class CallForm:
    """One call is ``begin``, ``before``, the name, ``middle``, the arguments, ``after``, ``end``."""

    begin: int
    end: int
    style: Literal["json", "xml"]
    """How the arguments are written."""
    before: str
    middle: str
    after: str
    between: str
    """What stands between two calls; often a line break, or nothing."""


def read_call_form(codec: TokenCodec) -> CallForm | None:
    """The form of the model's calls; ``None``: it is not known, so nothing of it can be enforced."""
    begin, end = (marker_id(codec, marker) for marker in (BEGIN, END))
    if begin is None or end is None:
        return None
    call = ToolCallPart("probe_0", _NAME, '{"zq8": "zq9"}')
    user = Message("user", (TextPart("A question."),))
    try:
        ids = codec.render((user, Message("assistant", (call, ToolCallPart("probe_1", _NAME, call.arguments)))), ())
    except DragomanError:
        return None  # the template cannot write calls
    found = ids.tolist()
    try:
        first, last = found.index(begin), len(found) - found[::-1].index(end)
        close = found.index(end, first)
        second = found.index(begin, close)
    except ValueError:
        return None
    block, between = codec.decode(found[first + 1 : close]), codec.decode(found[close + 1 : second])
    before, name, rest = block.partition(_NAME)
    arguments = _ARGUMENTS.search(rest)
    if not name or arguments is None or between.strip():
        return None
    style: Literal["json", "xml"] = "json" if arguments["json"] else "xml"
    middle, after = rest[: arguments.start()], rest[arguments.end() :]
    form = CallForm(begin, end, style, before, middle, after, between)
    read = codec.parse([0], found[first:last], (_probe_tool(),)).tool_calls
    if [(one.name, one.status, one.arguments) for one in read] != [(_NAME, "ok", call.arguments)] * 2:
        return None
    return form


def marker_id(codec: TokenCodec, marker: str) -> int | None:
    """The id of a marker that is one token of the model; ``None``: it is none."""
    ids = codec.encode(marker).tolist()
    return ids[0] if len(ids) == 1 else None


def _probe_tool() -> Tool:
    return Tool(_NAME, "", {"type": "object", "properties": {"zq8": {"type": "string"}}})
