"""Requests that are wrong somewhere, made from requests that are right. Pure: the random source is passed in.

A body is changed as a tree of values, then as text, then as bytes; path, query and headers are changed apart from it.
``Request.changes`` names what was done, so that a defect can be understood without running it again.
"""

import copy
import gzip
import json
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Literal
from urllib.parse import quote

import zstandard

Dialect = Literal["anthropic", "openai_chat", "openai_responses", "google", "control"]
Headers = tuple[tuple[bytes, bytes], ...]

ROUTES: dict[Dialect, tuple[str, ...]] = {
    "anthropic": ("/v1/messages", "/v1/messages", "/v1/messages/count_tokens"),
    "openai_chat": ("/v1/chat/completions",),
    "openai_responses": ("/v1/responses", "/v1/responses", "/v1/responses/compact", "/backend-api/codex/responses"),
    "google": tuple(
        f"/{version}/models/m:{verb}"
        for version, verb in (
            ("v1beta", "generateContent"),
            ("v1beta", "streamGenerateContent"),
            ("v1", "streamGenerateContent"),
            ("v1beta", "countTokens"),
        )
    ),
    "control": ("/dragoman/episodes",),
}
LISTS = ("/v1/models", "/v1/models/m", "/v1beta/models", "/v1beta/models/m", "/v1/models/a%2Fb")

_WORDS = (
    *("", "text", "tool_result", "tool_use", "image_url", "custom", "function", "data:x", "assistant", "json_schema"),
    *("namespace", "local_shell", "allowed_tools", "additional_tools", "compaction", "model", "ANY", "image/png"),
    *("OBJECT", "AAAA", "user", "system", "developer", "tool", "thinking", "input_image", "any", "required", "none"),
    *("\x00", "\ud800", "é", "🦊", "\u202e", "null", " ", "../..", "<|im_end|>", "<tool_call>", "<think>", "%", "\\"),
)
_NUMBERS = (0, -1, 1, 2, 0.5, -0.0, 2**31, 2**53 + 1, 2**63, 2**64, -(2**63), 1e308, 1e-320, 10**30)
_RAW = (
    *("1e999", "-1e999", "NaN", "Infinity", "01", "1.", "tru", "'a'", '"\\ud800"', '"\\udc00\\ud800"', '"\\u0000"'),
    *("9" * 400, "-", "[", "{", '{"a":1,"a":2}', '"\\x"', '"\t"', "", ",", "1e-999", "// a"),
)
_NAMES = (
    *("", " ", "m", "a/b", "a:b", "models/m", "é", "🦊", "%", "%2F", "..", "a b", "a\nb", "\x00", "x" * 300, "a?b=c"),
    *("a#b", "m:streamGenerateContent", "<script>", "'; drop table call; --", "NaN", "𝒎", "\ud800"),
)
_AGENTS = (
    "claude-cli/2.1",
    "codex_exec/0.9",
    "GeminiCLI/0.2/x (a)",
    "QwenCode/0.1",
    "opencode/1",
    "pi",
    "/",
    "",
    "é",
    "x/",
)
_NAMED_HEADERS = (
    *("x-claude-code-agent-id", "thread-id", "x-session-id", "session-id", "x-codex-parent-thread-id"),
    *("x-claude-code-request-class", "x-codex-turn-metadata", "x-goog-api-client", "anthropic-version"),
    *("anthropic-beta", "x-goog-api-key", "authorization", "content-type", "accept", "chatgpt-account-id"),
    *("x-dragoman-ticket", "content-length", "transfer-encoding", "host", "x-codex-beta-features"),
)
_BOMB = gzip.compress(bytes(8_000_000), 9)
_ZSTD_BOMB = zstandard.compress(bytes(8_000_000))
_PLACEHOLDER = re.compile(rb'"@@(deep|list|raw):([0-9]+)@@"')


@dataclass(frozen=True, slots=True)
class Sample:
    """A request that is right."""

    name: str
    dialect: Dialect
    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Request:
    dialect: Dialect
    method: str
    path: str
    """Percent-encoded, as on the wire."""
    query: str
    headers: Headers
    body: bytes
    leaves: Literal["sending", "reading"] | None
    """When its client goes away; ``None``: it stays to the end."""
    changes: tuple[str, ...]
    fields: frozenset[str]
    """Every key in the body, before and after it was changed."""


def keys_in(value: Any) -> set[str]:
    """Every key of every object in a JSON value."""
    if isinstance(value, dict):
        return set(value).union(*map(keys_in, value.values()))
    return set().union(*map(keys_in, value)) if isinstance(value, list) else set()


def shrink(value: Any, *, text: int = 200, items: int = 5) -> Any:
    """A recorded body made small: long texts and long lists cut."""
    if isinstance(value, dict):
        return {key: shrink(item, text=text, items=items) for key, item in value.items()}
    if isinstance(value, list):
        return [shrink(item, text=text, items=items) for item in value[:items]]
    return value[:text] if isinstance(value, str) else value


def make_request(random: Random, samples: Sequence[Sample], key: str) -> Request:
    """One request. ``key``: the credential that it carries, mostly in the way its dialect has it."""
    sample = random.choice(samples)
    changes = [sample.name]
    if sample.dialect != "control" and random.random() < 0.03:
        path = random.choice(LISTS)
        headers = _headers(random, sample.dialect, key, changes)
        return Request(sample.dialect, "GET", path, "", headers, b"", None, tuple(changes), frozenset())
    value = copy.deepcopy(sample.body)
    if random.random() < 0.5 and sample.dialect in ("anthropic", "openai_chat", "openai_responses"):
        value["stream"] = True
    if random.random() < 0.1:
        value["model"] = random.choice(_NAMES)
        changes.append("model name")
    if random.random() < 0.75:
        for _ in range(random.randint(1, 4)):
            value = _change_value(random, value, samples, changes)
    body = _text(random, value, changes)
    fields = frozenset(keys_in(sample.body) | keys_in(value))
    headers = _headers(random, sample.dialect, key, changes)
    if random.random() < 0.1:
        body = _change_bytes(random, body, changes)
    if random.random() < 0.1:
        body, encoding = _encode(random, body, changes)
        headers = (*headers, (b"content-encoding", encoding))
    method, path, query = _target(random, sample, changes)
    leaves: Literal["sending", "reading"] | None = None
    if random.random() < 0.02:
        leaves = random.choice(("sending", "reading"))
        changes.append(f"leaves while {leaves}")
    return Request(sample.dialect, method, path, query, headers, body, leaves, tuple(changes), fields)


def _junk(random: Random, samples: Sequence[Sample]) -> Any:
    match random.randrange(12):
        case 0:
            return None
        case 1:
            return random.random() < 0.5
        case 2 | 3:
            return random.choice(_NUMBERS)
        case 4 | 5:
            return random.choice(_WORDS)
        case 6:
            return random.choice(([], {}, [[]], [None], [{}], {"type": None}, {"type": []}, {"": ""}, [1, "a"]))
        case 7:
            return random.choice(("a", "é", "\x00", "🦊 ")) * random.choice((10, 1000, 20_000))
        case 8:
            return f"@@{random.choice(('deep', 'list'))}:{random.choice((5, 100, 300, 1100, 20_000))}@@"
        case 9:
            return f"@@raw:{random.randrange(len(_RAW))}@@"
        case _:  # a piece of another request
            other = random.choice(samples).body
            container, key = random.choice(_places(other))
            return copy.deepcopy(container[key])


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) in a JSON value."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    return [place for key in keys for place in ((value, key), *_places(value[key]))]


def _change_value(random: Random, value: Any, samples: Sequence[Sample], changes: list[str]) -> Any:
    places = _places(value)
    if not places:
        return _junk(random, samples)
    container, key = random.choice(places)
    kind = random.choice(
        (
            "replace",
            "replace",
            "replace",
            "remove",
            "repeat",
            "rename",
            "wrap",
            "turn",
            "swap",
            "add",
            "whole",
            "odd text",
        )
    )
    changes.append(f"{kind} {key!r}")
    match kind:
        case "replace":
            container[key] = _junk(random, samples)
        case "remove":
            del container[key]
        case "repeat" if isinstance(container, list):
            container.extend([container[key]] * random.choice((1, 1, 30)))
        case "rename" if isinstance(container, dict):
            new = random.choice((key.upper(), key + "s", key[:-1], "", "é", f"{key}\x00", "type", "role", "\ud800"))
            container[new] = container.pop(key)
        case "wrap":
            container[key] = random.choice(([container[key]], {"a": container[key]}, [[container[key]]]))
        case "turn":
            old = container[key]
            if isinstance(old, list):
                container[key] = {str(at): item for at, item in enumerate(old)}
            elif isinstance(old, dict):
                container[key] = list(old.values())
            else:
                container[key] = json.dumps(old)
        case "swap":
            other, its = random.choice(places)
            if other is container:
                container[key], other[its] = other[its], container[key]
        case "odd text" if isinstance(container[key], str):
            at = random.randint(0, len(container[key]))
            container[key] = container[key][:at] + random.choice(_WORDS) + container[key][at:]
        case "whole" if random.random() < 0.2:
            return _junk(random, samples)
        case _:
            donor = random.choice(samples).body
            if isinstance(value, dict) and donor:
                name = random.choice(list(donor))
                value[name] = random.choice((copy.deepcopy(donor[name]), _junk(random, samples)))
    return value


def _text(random: Random, value: Any, changes: list[str]) -> bytes:
    def put(match: re.Match[bytes]) -> bytes:
        number = int(match[2])
        changes.append(match[0].decode())
        if match[1] == b"raw":
            return _RAW[number].encode()
        opening, closing = (b'{"a":', b"}") if match[1] == b"deep" else (b"[", b"]")
        return opening * number + b"1" + closing * number

    try:
        text = json.dumps(value, ensure_ascii=random.random() < 0.5)
    except RecursionError:  # pieces of pieces
        text = "{}"
    return _PLACEHOLDER.sub(put, text.encode(errors="surrogatepass"))


def _change_bytes(random: Random, body: bytes, changes: list[str]) -> bytes:
    at = random.randint(0, len(body))
    kind = random.randrange(8)
    changes.append(f"bytes {kind} at {at}")
    match kind:
        case 0:
            return body[:at]
        case 1:
            return body[:at] + bytes([random.randrange(256)]) + body[at + 1 :]
        case 2:
            return b"\xef\xbb\xbf" + body
        case 3:
            return body.decode(errors="replace").encode("utf-16")
        case 4:
            return body + random.choice((b"x", b"\x00", b"{}", b"\n\n", b","))
        case 5:
            return b""
        case 6:
            return random.randbytes(random.randrange(100))
        case _:
            return body[:at] + b" " * 3000 + body[at:]


def _encode(random: Random, body: bytes, changes: list[str]) -> tuple[bytes, bytes]:
    packed, encoding = random.choice(
        (
            (gzip.compress(body, 1), b"gzip"),
            (zlib.compress(body, 1), b"deflate"),
            (zstandard.compress(body, 1), b"zstd"),
            (_BOMB, b"gzip"),
            (_ZSTD_BOMB, b"zstd"),
            (body, b"identity"),
        )
    )
    kind = random.randrange(6)
    changes.append(f"{encoding.decode()} {kind}")
    match kind:
        case 0:
            return packed[: random.randint(0, len(packed))], encoding
        case 1:
            at = random.randrange(max(1, len(packed)))
            return packed[:at] + bytes([random.randrange(256)]) + packed[at + 1 :], encoding
        case 2:
            return packed, random.choice((b"gzip", b"deflate", b"zstd", b"br", b"", b"gzip, zstd", b"\xff", b"GZIP"))
        case _:
            return packed, encoding


def _target(random: Random, sample: Sample, changes: list[str]) -> tuple[str, str, str]:
    path = random.choice(ROUTES[sample.dialect])
    if sample.dialect == "openai_chat" and ("prompt" in sample.body or random.random() < 0.05):
        path = "/v1/completions"
    query = random.choice(("", "", "beta=true", "alt=sse")) if sample.dialect in ("anthropic", "google") else ""
    method = "POST"
    if sample.dialect == "google" and random.random() < 0.2:
        path = path.replace("/m:", f"/{quote(random.choice(_NAMES), safe='', errors='surrogatepass')}:")
        changes.append("model in the path")
    if random.random() < 0.05:
        method, path, query = random.choice(
            (
                (random.choice(("GET", "PUT", "PATCH", "DELETE", "OPTIONS", "HEAD")), path, query),
                (method, path + "/", query),
                (method, "/" + path, query),
                (method, path.replace("/v1", "/v9"), query),
                (method, path[: random.randint(1, len(path))], query),
                (method, path + random.choice(("%00", "%ff", "%", "%2e%2e", ";a", "é", ":", "x" * 3000)), query),
                (method, path.upper(), query),
                (method, "/e/" + path, query),
                (
                    method,
                    path,
                    random.choice(("key=", "key=dgm_a", "key=%ff", "alt=%00", "&&&=", "a=1&a=2", "alt=é", "$alt=json")),
                ),
                (method, random.choice([route for routes in ROUTES.values() for route in routes]), query),
            )
        )
        changes.append(f"{method} {path[:80]}?{query}")
    return method, path, query


def _headers(random: Random, dialect: Dialect, key: str, changes: list[str]) -> Headers:
    headers = {b"host": b"127.0.0.1:8080", b"content-type": b"application/json"}
    name = {"anthropic": "x-api-key", "google": "x-goog-api-key"}.get(dialect, "authorization")
    headers[name.encode()] = (f"Bearer {key}" if name == "authorization" else key).encode()
    if random.random() < 0.3:
        headers[b"user-agent"] = random.choice(_AGENTS).encode("latin-1", errors="replace")
    if random.random() < 0.15:
        odd = random.choice(_NAMED_HEADERS).encode()
        if odd not in headers or random.random() < 0.1:  # mostly leave the credential alone
            headers[odd] = random.choice(
                (b"", b"a", b"\xe9\xff", b"x" * 9000, b'{"request_kind":"compaction"}', b"Bearer", b"{")
            )
            changes.append(f"header {odd.decode()}")
    if random.random() < 0.02:
        headers[b"host"] = random.choice((b"", b"[", b"a b", b"a:b:c", b"\xff", b"a/b?c#d", b"x" * 3000))
        changes.append(f"host {headers[b'host'][:20]!r}")
    return tuple(headers.items())
