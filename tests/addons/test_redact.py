"""Credentials leave for the host that they are meant for, ours never do, and none is saved."""

import base64

import pytest
from mitmproxy import http
from mitmproxy.test import tflow

from dragoman.addons.redact import REDACTED, lower_headers, redact, take_ours

TOKEN = "0123456789abcdef" * 2


def flow_with(headers: dict[str, str], path: str = "/a") -> http.HTTPFlow:
    flow = tflow.tflow(resp=True)
    flow.request.headers = http.Headers([(name.encode(), value.encode()) for name, value in headers.items()])
    flow.request.path = path
    return flow


@pytest.mark.parametrize(
    "header",
    [
        ("authorization", f"Bearer dgm_{TOKEN}"),
        ("x-api-key", f"dgm_{TOKEN}"),
        ("x-anything", f"dgo_{TOKEN}"),
        ("proxy-authorization", "Basic abc"),
        ("X-Dragoman-Ticket", "1"),
        ("authorization", "Basic " + base64.b64encode(f"dgm_{TOKEN}:x".encode()).decode()),
    ],
)
def test_ours_do_not_leave(header: tuple[str, str]) -> None:
    flow = flow_with({header[0]: header[1], "accept": "*/*"})
    take_ours(flow.request)
    assert list(flow.request.headers.keys()) == ["accept"]


def test_ours_do_not_leave_in_the_query_either() -> None:
    flow = flow_with({}, f"/a?key=dgm_{TOKEN}&q=1&key=theirs")
    take_ours(flow.request)
    assert flow.request.path == "/a?q=1&key=theirs"


def test_theirs_leave() -> None:
    headers = {"authorization": "Bearer ghp_theirs", "cookie": "a=b", "private-token": "glpat"}
    flow = flow_with(headers, "/a?token=theirs")
    take_ours(flow.request)
    assert dict(flow.request.headers) == headers
    assert flow.request.path == "/a?token=theirs"


def test_none_is_saved() -> None:
    headers = {"authorization": "Basic secret", "Cookie": "secret", "Private-Token": "secret", "accept": "text/html"}
    flow = flow_with(headers, "/a?access_token=secret&page=2&X-Amz-Signature=secret")
    assert flow.response is not None
    flow.response.headers["set-cookie"] = "secret"
    redact(flow)
    assert b"secret" not in repr(flow.get_state()).encode()
    assert flow.request.headers["accept"] == "text/html"
    assert flow.request.headers["private-token"] == REDACTED
    assert "page=2" in flow.request.path


def test_an_error_that_quotes_the_key_is_saved_without_it() -> None:
    flow = flow_with({"authorization": "Bearer sk-theirs-123"})
    assert flow.response is not None
    flow.response.headers["content-encoding"] = "gzip"
    flow.response.content = b"your key sk-theirs-123 is no good"
    redact(flow)
    assert flow.response.content == b"your key redacted is no good"
    assert flow.response.headers["content-encoding"] == "gzip"


@pytest.mark.parametrize(
    ("path", "saved"),
    [
        (f"/e/{TOKEN}/v1/messages?beta=true", "/v1/messages?beta=true"),
        (f"/e/{TOKEN}/e/{TOKEN}/v1/messages", "/v1/messages"),
        (f"//e/{TOKEN}%00/v1", "/v1"),
        ("/v1/e/x", "/v1/e/x"),
    ],
)
def test_a_token_in_the_path_is_not_saved(path: str, saved: str) -> None:
    flow = flow_with({}, path)
    redact(flow)
    assert flow.request.path == saved


def test_a_header_that_is_there_twice_is_both() -> None:
    """So that two tokens never pass for one of them."""
    flow = flow_with({"X-Api-Key": "dgm_a"})
    flow.request.headers.add("x-api-key", "dgm_b")
    assert lower_headers(flow.request) == {"x-api-key": "dgm_a, dgm_b"}
