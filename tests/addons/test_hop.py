from dragoman.addons.hop import Hop, Tickets, read_target
from dragoman.addons.identity import Credentials

HOP = Hop(Credentials(), None, "http://127.0.0.1:8080")


def test_a_ticket_works_once() -> None:
    tickets = Tickets()
    ticket = tickets.issue(HOP)
    assert tickets.redeem(ticket) is HOP
    assert tickets.redeem(ticket) is None


def test_missing_made_up_and_withdrawn_tickets_do_not_work() -> None:
    tickets = Tickets()
    ticket = tickets.issue(HOP)
    tickets.withdraw(ticket)
    assert [tickets.redeem(t) for t in (None, "", "f" * 32, ticket)] == [None] * 4


def test_the_target_of_a_request_is_as_it_was_sent() -> None:
    scope = {"path": "/v1beta/models/a?b#c\n:x", "query_string": b"a=1&b=\xff", "headers": [(b"host", b"[")]}
    assert read_target(scope) == ("/v1beta/models/a?b#c\n:x", "a=1&b=\xff")
