"""What must never be written: credentials, cut out of a flow before mitmproxy saves it.

Rules of this module: traffic for the model loses its credentials before it goes anywhere, so there is nothing to cut.
What leaves for another host keeps its own on the wire, since they are meant for that host, and loses them here.
"""

import re
from urllib.parse import parse_qsl, urlencode

from mitmproxy import http

from dragoman.addons.hop import INTERNAL_PREFIX
from dragoman.addons.identity import CREDENTIAL_HEADERS, KEY_PREFIX, OPERATOR_PREFIX, read_proxy_user

REDACTED = "redacted"
_SECRET_NAME = re.compile(r"key|token|secret|password|passwd|signature|credential|cookie|auth", re.IGNORECASE)
_PATH_TOKEN = re.compile(r"^/*(?:e/[^/]*/)+")
_OURS = re.compile(rf"(?:{KEY_PREFIX}|{OPERATOR_PREFIX})[0-9a-f]")


def split_target(target: str) -> tuple[str, str]:
    """Path and query of a request's target. (``urlsplit`` would take the start of ``//a/b`` for a host.)"""
    path, _, query = target.partition("?")
    return path, query


def join_target(path: str, query: str) -> str:
    return f"{path}?{query}" if query else path


def lower_headers(request: http.Request) -> dict[str, str]:
    """Headers by lower-case name; one that is there several times is one value, joined by commas."""
    return {name.lower(): request.headers[name] for name in request.headers}


def take_ours(request: http.Request) -> None:
    """Take an episode's or the operator's key out of a request that is about to leave for somebody else's host."""
    for raw_name, raw_value in request.headers.fields:
        name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
        if name.lower().startswith(INTERNAL_PREFIX) or name.lower() == "proxy-authorization" or _is_ours(name, value):
            request.headers.pop(name, None)
    path, query = split_target(request.path)
    if _OURS.search(query):
        request.path = join_target(
            path, urlencode([pair for pair in parse_qsl(query, True) if not _OURS.search(pair[1])])
        )


def _is_ours(name: str, value: str) -> bool:
    if name.lower() == "authorization" and value.lower().startswith("basic "):
        user = read_proxy_user(value)  # git puts a token there as well
        return user is not None and _OURS.match(user) is not None
    return _OURS.search(value) is not None


def without_secrets(text: str, request: http.Request) -> str:
    """``text`` without the credentials of ``request``: an error message may well quote the key that it refuses."""
    for secret in _secrets(request):
        text = text.replace(secret, REDACTED)
    return text


def _secrets(request: http.Request) -> set[str]:
    values = [value for name in CREDENTIAL_HEADERS for value in request.headers.get_all(name)]
    return {secret for value in values for secret in (value, value.rpartition(" ")[2]) if secret}


def redact(flow: http.HTTPFlow) -> None:
    """Cut the credentials out of a flow whose request and response have been on the wire."""
    request = flow.request
    # A call for the model has no secrets left, so its reply is not even looked at.
    if (secrets := _secrets(request)) and flow.response and (said := flow.response.get_content(strict=False)):
        without = said
        for secret in secrets:
            without = without.replace(secret.encode("latin-1", "replace"), REDACTED.encode())
        if without != said:
            flow.response.content = without
    for headers in (request.headers, flow.response.headers if flow.response else http.Headers()):
        for name in {raw_name.decode("latin-1") for raw_name, _ in headers.fields}:
            if name.lower() in CREDENTIAL_HEADERS or _SECRET_NAME.search(name):
                headers[name] = REDACTED
    path, query = split_target(request.path)
    pairs = parse_qsl(query, True)
    if any(_SECRET_NAME.search(name) for name, _ in pairs):
        query = urlencode([(name, REDACTED if _SECRET_NAME.search(name) else value) for name, value in pairs])
    request.path = join_target(_PATH_TOKEN.sub("/", path), query)
