"""The probe's script in mitmproxy: what it notes, and whom a fault meets."""

import json
from pathlib import Path
from typing import Any

import pytest
from mitmproxy.test import taddons, tflow, tutils

from dragoman.cli.probe_watch import FAULT, FOLDER, NOTES, Watch

FAULTY = {"status": 429, "retry_after": 3, "wait": 0, "offers_tools": True}


@pytest.fixture
def watch(tmp_path: Path) -> Any:
    addon = Watch()
    with taddons.context(addon) as context:  # type: ignore[no-untyped-call]
        context.configure(addon, **{FOLDER: str(tmp_path)})
        yield addon


def _flow(path: str = "/v1/chat/completions", body: bytes = b'{"tools":[1]}') -> Any:
    return tflow.tflow(req=tutils.treq(method=b"POST", path=path.encode(), content=body, host="api.openai.com"))


def test_it_notes_where_requests_go(watch: Watch, tmp_path: Path) -> None:
    watch.requestheaders(_flow())

    assert json.loads((tmp_path / NOTES).read_text()) == {"host": "api.openai.com", "secure": False, "port": 22}


async def test_a_fault_meets_the_first_request_that_offers_tools_and_is_used_up(watch: Watch, tmp_path: Path) -> None:
    (tmp_path / FAULT).write_text(json.dumps(FAULTY))
    models, title, main, later = _flow("/v1/models"), _flow(body=b'{"messages":[]}'), _flow(), _flow()
    for flow in (models, title, main, later):
        await watch.request(flow)

    assert [flow.response is None for flow in (models, title, main, later)] == [True, True, False, True]
    assert (main.response.status_code, main.response.headers["retry-after"]) == (429, "3")
    assert "error" in json.loads(main.response.content)


async def test_in_the_dialect_of_the_request(watch: Watch, tmp_path: Path) -> None:
    (tmp_path / FAULT).write_text(json.dumps(FAULTY | {"status": 500, "retry_after": None, "offers_tools": False}))
    flow = _flow("/v1/messages", b"{}")
    await watch.request(flow)

    assert json.loads(flow.response.content)["type"] == "error"
    assert "retry-after" not in flow.response.headers


async def test_what_was_kept_waiting_goes_on_only_for_a_client_that_is_there(watch: Watch, tmp_path: Path) -> None:
    for connected, seconds in ((True, 0.001), (False, 3600)):
        (tmp_path / FAULT).write_text(json.dumps(FAULTY | {"status": 0, "wait": seconds}))
        flow = _flow()
        if not connected:
            flow.client_conn.state = type(flow.client_conn.state)(0)
        await watch.request(flow)
        assert (flow.response, flow.killable) == (None, connected)


async def test_without_a_fault_nothing_happens(watch: Watch) -> None:
    flow = _flow()
    await watch.request(flow)

    assert flow.response is None
