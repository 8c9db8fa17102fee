"""A diverted flow goes to the app, and is saved as what it was."""

from mitmproxy.test import tflow

from dragoman.addons.diversion import Diversions
from dragoman.addons.hop import TICKET_HEADER, Hop, Tickets
from dragoman.addons.identity import Credentials

HOP = Hop(Credentials(), "api.anthropic.com", "https://api.anthropic.com")


def test_there_and_back() -> None:
    diversions = Diversions(Tickets())
    flow = tflow.tflow(resp=True)
    before = (flow.request.scheme, flow.request.host, flow.request.port, dict(flow.request.headers))
    diversions.divert(flow, HOP, 4711, keep=True)
    assert (flow.request.scheme, flow.request.host, flow.request.port) == ("http", "127.0.0.1", 4711)
    ticket = flow.request.headers[TICKET_HEADER]
    assert flow.response is not None
    flow.response.raw_content = None
    tee = diversions.tee(flow)
    assert tee is not None
    assert [tee(b"one "), tee(b"two")] == [b"one ", b"two"]
    diversions.restore(flow)
    assert (flow.request.scheme, flow.request.host, flow.request.port, dict(flow.request.headers)) == before
    assert flow.response.raw_content == b"one two"
    assert diversions.tickets.redeem(ticket) is None, "the ticket of a flow that is over opens nothing"
    diversions.restore(flow)  # an error after the response changes nothing


def test_a_reply_that_must_not_be_saved_passes_all_the_same() -> None:
    diversions = Diversions(Tickets())
    flow = tflow.tflow(resp=True)
    diversions.divert(flow, HOP, 4711, keep=False)
    assert flow.response is not None
    flow.response.raw_content = None
    tee = diversions.tee(flow)
    assert tee is not None
    assert tee(b"a token") == b"a token"
    diversions.restore(flow)
    assert flow.response.raw_content == b""


def test_another_flow_is_left_alone() -> None:
    diversions = Diversions(Tickets())
    flow = tflow.tflow(resp=True)
    assert diversions.tee(flow) is None
    before = flow.get_state()
    diversions.restore(flow)
    assert flow.get_state() == before
