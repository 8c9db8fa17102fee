"""What must never be written: credentials, cut out of a flow before mitmproxy saves it.

Rules of this module: traffic for the model loses its credentials before it goes anywhere, so there is nothing to cut.
What leaves for another host keeps its own on the wire, since they are meant for that host, and loses them here.
"""

import re
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from mitmproxy import http

from dragoman.addons.hop import INTERNAL_PREFIX
from dragoman.addons.identity import CREDENTIAL_HEADERS, KEY_PREFIX, OPERATOR_PREFIX, read_proxy_user

REDACTED = "redacted"
_SECRET_NAME = re.compile(r"key|token|secret|password|passwd|signature|credential|cookie|auth", re.IGNORECASE)
_OURS = re.compile(rf"(?:{KEY_PREFIX}|{OPERATOR_PREFIX})[0-9a-f]")


def take_ours(request: http.Request) -> None:
    """Take an episode's or the operator's key out of a request that is about to leave for somebody else's host."""
    for raw_name, raw_value in request.headers.fields:
        name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
        if name.lower().startswith(INTERNAL_PREFIX) or name.lower() == "proxy-authorization" or _is_ours(name, value):
            request.headers.pop(name, None)
    parts = urlsplit(request.path)
    if _OURS.search(parts.query):
        kept = [(name, value) for name, value in parse_qsl(parts.query, True) if not _OURS.search(value)]
        request.path = urlunsplit(("", "", parts.path, urlencode(kept), ""))


def _is_ours(name: str, value: str) -> bool:
    if name.lower() == "authorization" and value.lower().startswith("basic "):
        user = read_proxy_user(value)  # git puts a token there as well
        return user is not None and _OURS.match(user) is not None
    return _OURS.search(value) is not None


def redact(flow: http.HTTPFlow) -> None:
    """Cut the credentials out of a flow whose request and response have been on the wire."""
    request = flow.request
    for headers in (request.headers, flow.response.headers if flow.response else http.Headers()):
        for name in {raw_name.decode("latin-1") for raw_name, _ in headers.fields}:
            if name.lower() in CREDENTIAL_HEADERS or _SECRET_NAME.search(name):
                headers[name] = REDACTED
    parts = urlsplit(request.path)
    if any(_SECRET_NAME.search(name) for name, _ in parse_qsl(parts.query, True)):
        pairs = parse_qsl(parts.query, True)
        kept = [(name, REDACTED if _SECRET_NAME.search(name) else value) for name, value in pairs]
        request.path = urlunsplit(("", "", parts.path, urlencode(kept), ""))
