"""The tools of the Responses dialect and the calls to them, both ways. Pure.

A model is shown functions only, so each kind of tool becomes one, in a way that the request's own tool list undoes:

- ``custom`` (free text): a function with one string argument ``input``; the grammar of the text, where there is one,
  ends its description. A call goes back as ``custom_tool_call``; arguments that are not ``{"input": "…"}`` are its
  input as they stand: the tool finds that they break its grammar, and says so.
- ``namespace``: its tools are named ``<namespace>__<name>``; its own description stands before that of its first tool.
  A call goes back with the bare name and ``namespace``. The list decides, so a plain tool may be named ``a__b`` too; a
  list in which one such name would mean two tools is refused.
- ``local_shell``: a function of that name. A call goes back as ``local_shell_call``.
- ``tool_search`` with ``execution: client``: a function. A call goes back as ``tool_search_call``, and the tools found
  (``tool_search_output``) join the list, as those of ``additional_tools`` do.
- Arguments that cannot be what their kind wants go back as they were sampled, for the harness to make an error result
  of: as a string in a ``tool_search_call``, and a shell call without a list of words as ``function_call``.
- A tool that comes again under its name takes the earlier one's place.

Tools that run at the provider (web search, file search, code interpreter, images, MCP servers, tool search at the
server) are left out beside others; a request that has nothing else is refused. Other tools that OpenAI defines and a
client runs (``shell``, ``apply_patch``, ``computer…``) come without a schema and are refused. Ignored: ``strict``,
``async``, ``defer_loading`` (such a tool is shown like any other), ``allowed_callers`` and ``output_schema``.
"""

from collections.abc import Iterator
from dataclasses import replace

import orjson

from dragoman.addons.errors import InvalidRequest, Unsupported
from dragoman.addons.messages import Tool, ToolCallPart, ToolChoice
from dragoman.addons.providers.fields import (
    as_flag,
    as_json,
    as_list,
    as_name,
    as_object,
    as_schema,
    as_text,
    shown,
    wrong,
)
from dragoman.store.records import JsonObject

TOOL_LISTS = ("additional_tools", "tool_search_output")
"""Input items that bring tools."""

_HOSTED = ("web_search", "file_search", "code_interpreter", "image_generation", "mcp", "programmatic_tool_calling")
_NO_ARGUMENTS: JsonObject = {"type": "object", "properties": {}}
_CUSTOM_ARGUMENTS: JsonObject = {
    "type": "object",
    "properties": {"input": {"type": "string", "description": "The tool's input, as plain text."}},
    "required": ["input"],
    "additionalProperties": False,
}
_SHELL_ARGUMENTS: JsonObject = {
    "type": "object",
    "properties": {
        "command": {"type": "array", "items": {"type": "string"}, "description": "The command and its arguments."},
        "working_directory": {"type": "string", "description": "Where to run it."},
        "timeout_ms": {"type": "integer", "description": "Milliseconds after which it is stopped."},
    },
    "required": ["command"],
}

# -- the list --------------------------------------------------------------------------------------------------------


def read_tools(body: JsonObject, earlier: tuple[Tool, ...]) -> tuple[tuple[Tool, ...], frozenset[str]]:
    """The tools of a request, and the names of those that came with its input.

    First those of ``tools``, then ``earlier``, which came with the input that this one goes on with, then those that
    input items bring, in order.
    """
    items = body.get("input")
    lists = [
        (item.get("tools"), f"input[{i}].tools")
        for i, item in enumerate(items if isinstance(items, list) else [])
        if isinstance(item, dict) and item.get("type") in TOOL_LISTS
    ]
    left_out: list[str] = []
    beside = [(tool, "tools") for tool in tools_in(body.get("tools"), "tools", left_out)]
    brought = [(tool, "previous_response_id") for tool in earlier]
    brought += [(tool, at) for value, at in lists for tool in tools_in(value, at, left_out)]
    table: dict[str, Tool] = {}
    for tool, at in (*beside, *brought):
        if tool.name in table and table[tool.name].namespace != tool.namespace:
            raise InvalidRequest(f"{at}: two tools would be shown as {shown(tool.name)}; rename one", field=at)
        table[tool.name] = tool
    if left_out and not table:
        raise Unsupported(f"tools: {', '.join(left_out)} runs at the provider and is not supported", field="tools")
    return tuple(table.values()), frozenset(tool.name for tool, _ in brought)


def tools_in(value: object, at: str, left_out: list[str]) -> Iterator[Tool]:
    """The tools of one list. The types of those that are left out are added to ``left_out``."""
    for i, item in enumerate([] if value is None else as_list(value, at)):
        place = f"{at}[{i}]"
        tool = as_object(item, place)
        match tool.get("type"):
            case "namespace":
                yield from _namespace(tool, place)
            case "local_shell":
                yield Tool("local_shell", "Runs a command on the user's machine.", _SHELL_ARGUMENTS, "local_shell")
            case "tool_search" if tool.get("execution") == "client":
                yield Tool("tool_search", _description(tool, place), _parameters(tool, place), "tool_search")
            case str(kind) if kind == "tool_search" or kind.startswith(_HOSTED):
                left_out.append(kind)
            case _:
                yield _tool(tool, place, None)


def _namespace(namespace: JsonObject, at: str) -> Iterator[Tool]:
    name = as_name(namespace.get("name"), f"{at}.name")
    before = _description(namespace, at)
    for i, item in enumerate(as_list(namespace.get("tools"), f"{at}.tools")):
        place = f"{at}.tools[{i}]"
        tool = _tool(as_object(item, place), place, name)
        yield replace(tool, description=_paragraphs(before, tool.description))
        before = ""


def _tool(tool: JsonObject, at: str, namespace: str | None) -> Tool:
    match tool.get("type"):
        case "function":
            name = _shown_name(tool, at, namespace)
            return Tool(name, _description(tool, at), _parameters(tool, at), "function", namespace)
        case "custom":
            description = _paragraphs(_description(tool, at), _grammar(tool.get("format"), f"{at}.format"))
            return Tool(_shown_name(tool, at, namespace), description, _CUSTOM_ARGUMENTS, "custom", namespace)
        case kind:
            raise Unsupported(f"{at}.type: tools of type {shown(kind)} are not supported", field=f"{at}.type")


def _shown_name(named: JsonObject, at: str, namespace: str | None) -> str:
    name = as_name(named.get("name"), f"{at}.name")
    return name if namespace is None else f"{namespace}__{name}"


def _description(tool: JsonObject, at: str) -> str:
    description = tool.get("description")
    return "" if description is None else as_text(description, f"{at}.description")


def _paragraphs(*texts: str) -> str:
    return "\n\n".join(text for text in texts if text)


def _parameters(tool: JsonObject, at: str) -> JsonObject:
    parameters = tool.get("parameters")
    return _NO_ARGUMENTS if parameters is None else as_schema(parameters, f"{at}.parameters")


def _grammar(value: object, at: str) -> str:
    form = {"type": "text"} if value is None else as_object(value, at)
    match form.get("type"):
        case "text":
            return ""
        case "grammar":
            syntax = as_name(form.get("syntax"), f"{at}.syntax")
            definition = as_text(form.get("definition"), f"{at}.definition")
            return f"The input must follow this {syntax} grammar:\n{definition}"
        case kind:
            raise Unsupported(f"{at}.type: {shown(kind)} is not supported", field=f"{at}.type")


# -- which of them may be called -------------------------------------------------------------------------------------


def read_tool_choice(body: JsonObject, tools: tuple[Tool, ...]) -> tuple[tuple[Tool, ...], ToolChoice]:
    """The tools to show, and the choice. ``allowed_tools`` leaves the others out."""
    parallel = as_flag(body.get("parallel_tool_calls"), "parallel_tool_calls", default=True)
    choice = body.get("tool_choice")
    match choice:
        case None | "auto":
            return tools, ToolChoice("auto", parallel=parallel)
        case "none":
            return tools, ToolChoice("none", parallel=parallel)
        case "required":
            if not tools:
                raise InvalidRequest("tool_choice: 'required' needs tools", field="tool_choice")
            return tools, ToolChoice("required", parallel=parallel)
        case {"type": "allowed_tools"}:
            allowed = _allowed(choice, tools)
            match choice.get("mode"):
                case "auto":
                    return allowed, ToolChoice("auto", parallel=parallel)
                case "required":
                    return allowed, ToolChoice("required", parallel=parallel)
                case mode:
                    raise wrong("tool_choice.mode", "'auto' or 'required'", mode)
        case dict():
            return tools, ToolChoice("required", _chosen(choice, tools, "tool_choice").name, parallel=parallel)
    raise wrong("tool_choice", "'auto', 'none', 'required' or a tool", choice)


def _allowed(choice: JsonObject, tools: tuple[Tool, ...]) -> tuple[Tool, ...]:
    names = set()
    for i, item in enumerate(as_list(choice.get("tools"), "tool_choice.tools")):
        place = f"tool_choice.tools[{i}]"
        entry = as_object(item, place)
        if not str(entry.get("type")).startswith(_HOSTED):
            names.add(_chosen(entry, tools, place).name)
    if not names:
        raise Unsupported("tool_choice.tools: none of these tools is supported", field="tool_choice.tools")
    return tuple(tool for tool in tools if tool.name in names)


def _chosen(entry: JsonObject, tools: tuple[Tool, ...], at: str) -> Tool:
    kind = entry.get("type")
    if kind in ("function", "custom"):
        name = _shown_name(entry, at, _namespace_of(entry, at))
    elif kind in ("local_shell", "tool_search"):
        name = kind
    else:
        raise Unsupported(f"{at}.type: {shown(kind)} is not supported", field=f"{at}.type")
    for tool in tools:
        if tool.name == name and tool.kind == kind:
            return tool
    raise InvalidRequest(f"{at}: no {kind} tool is named {shown(name)}", field=at)


def choice_shown(choice: ToolChoice, tools: tuple[Tool, ...]) -> str | JsonObject:
    """The choice as a reply repeats it."""
    for tool in tools:
        if tool.name == choice.name and tool.kind in ("function", "custom"):
            return {"type": tool.kind, "name": _bare_name(tool)}
    return choice.mode


# -- calls -----------------------------------------------------------------------------------------------------------


def read_call(item: JsonObject, at: str) -> ToolCallPart:
    """The call that an input item of one of the four kinds tells."""
    kind = item["type"]
    call_id = as_name(item.get("call_id"), f"{at}.call_id")
    if kind == "local_shell_call":
        action = as_object(item.get("action"), f"{at}.action")
        said = {key: value for key, value in action.items() if key != "type" and value not in (None, {})}
        return ToolCallPart(call_id, "local_shell", as_json(said, f"{at}.action"))
    if kind == "tool_search_call":
        wanted = item.get("arguments")
        if not isinstance(wanted, str):  # which it is if ``call_item`` told malformed ones
            wanted = as_json(wanted, f"{at}.arguments")
        return ToolCallPart(call_id, "tool_search", wanted)
    name = _shown_name(item, at, _namespace_of(item, at))
    if kind == "custom_tool_call":
        text = as_text(item.get("input"), f"{at}.input")
        return ToolCallPart(call_id, name, as_json({"input": text}, f"{at}.input"))
    return ToolCallPart(call_id, name, as_text(item.get("arguments"), f"{at}.arguments"))


def call_item(call: ToolCallPart, tools: tuple[Tool, ...]) -> JsonObject:
    """The output item for a call, in the form of the tool that it names.

    Its status is ``completed`` even if the reply was cut within it: OpenCode's run ends at a call of another status,
    and goes on from one whose arguments it cannot read.
    """
    tool = next((tool for tool in tools if tool.name == call.name), Tool(call.name, "", _NO_ARGUMENTS))
    arguments = _object_in(call.arguments)
    known: JsonObject = {"status": "completed", "call_id": call.id}
    match tool.kind:
        case "custom":
            text = call.arguments
            if arguments is not None and arguments.keys() == {"input"} and isinstance(arguments["input"], str):
                text = arguments["input"]
            return {"id": _item_id("ctc", call), "type": "custom_tool_call", **known, **_called(tool), "input": text}
        case "local_shell" if arguments is not None and _is_shell_call(arguments):
            # Clients give back either id with the output, so both are the same.
            action = {"type": "exec", "env": {}, **arguments}
            return {"id": call.id, "type": "local_shell_call", **known, "action": action}
        case "tool_search":
            known |= {"execution": "client", "arguments": call.arguments if arguments is None else arguments}
            return {"id": _item_id("tsc", call), "type": "tool_search_call", **known}
    item = {"id": _item_id("fc", call), "type": "function_call", **known, **_called(tool)}
    return {**item, "arguments": call.arguments}


def _called(tool: Tool) -> JsonObject:
    return {"name": _bare_name(tool)} | ({} if tool.namespace is None else {"namespace": tool.namespace})


def _bare_name(tool: Tool) -> str:
    return tool.name if tool.namespace is None else tool.name.removeprefix(f"{tool.namespace}__")


def _namespace_of(entry: JsonObject, at: str) -> str | None:
    namespace = entry.get("namespace")
    return None if namespace is None else as_name(namespace, f"{at}.namespace")


def _item_id(prefix: str, call: ToolCallPart) -> str:
    return f"{prefix}_{call.id.removeprefix('call_')}"


def _object_in(arguments: str) -> JsonObject | None:
    """``None``: the text is not one JSON object, or is nested too deeply to be written again."""
    try:
        value = orjson.loads(arguments)
        orjson.dumps([[[[[[value]]]]]])  # as deep as it will stand in a reply's last event
    except (orjson.JSONDecodeError, TypeError):
        return None
    return value if isinstance(value, dict) else None


def _is_shell_call(arguments: JsonObject) -> bool:
    """Whether these are the arguments of ``_SHELL_ARGUMENTS``. Codex drops an item with others without a word."""
    command, timeout = arguments.get("command"), arguments.get("timeout_ms", 0)
    return (
        arguments.keys() <= _SHELL_ARGUMENTS["properties"].keys()
        and isinstance(command, list)
        and bool(command)
        and all(isinstance(word, str) for word in command)
        and isinstance(timeout, int)
        and not isinstance(timeout, bool)
        and timeout >= 0
        and isinstance(arguments.get("working_directory", ""), str)
    )
