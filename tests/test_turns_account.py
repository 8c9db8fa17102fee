"""What is counted of a row's calls."""

import dataclasses
import json

from dragoman.store.records import Blob, JsonObject
from scripts.turns_account import account_of, read_account
from tests.store_calls import Episode

LEDGER: JsonObject = {
    "sampled_tokens": 9,
    "traced_tokens": 8,
    "excluded_tokens": {"side": 1},
    "flow_calls": 6,
    "problems": [],
}


def _episode() -> Episode:
    """A start, two exact calls (one of them with a changed echo), a branch, a fork, and a title."""
    episode = Episode()
    episode.add("title", [90], [91], kind="side")
    episode.add("a", [1, 2], [3])
    episode.add("b", [1, 2, 3, 4], [5, 6], parent="a", echo_changed=1)
    episode.add("c", [1, 2, 3, 4, 5, 6, 7], [8], parent="b", echo_changed=1)
    episode.add("empty", [1, 2, 3, 4, 5, 6, 9], [10], parent="b", echo_changed=2)
    episode.add("fork", [1, 2, 11], [12, 13], parent="c", shared=2, fork_reason="history_edited")
    return episode


def test_calls_are_counted_by_what_they_continue() -> None:
    account = account_of(_episode().calls, LEDGER, note=True)

    assert account.calls == {"side": 1, "main": 5}
    assert (account.starts, account.exact, account.forks) == (1, 3, ("history_edited",))
    assert account.traces == {"main": 3}
    assert (account.sampled, account.traced, account.excluded, account.flow_calls) == (9, 8, {"side": 1}, 6)


def test_a_changed_echo_is_counted_once_and_not_in_every_later_call() -> None:
    assert account_of(_episode().calls, LEDGER, note=True).echo_changed == 2


def test_what_the_tools_printed_is_found_in_the_messages() -> None:
    episode = _episode()
    call = episode.calls[1]
    assert call.outcome is not None
    said = Blob(b"d" * 16, b'{"text":"ran-44 and ran-43, ran-44"}')
    episode.calls[1] = dataclasses.replace(call, outcome=dataclasses.replace(call.outcome, messages=(said,)))

    assert account_of(episode.calls, LEDGER, note=True).printed == ("ran-43", "ran-44")


def test_an_image_that_several_calls_share_is_one() -> None:
    episode = _episode()
    data = b'{"role":"tool","parts":[{"type":"image","data":"x"},{"type":"image","data":"y"}]}'
    shared = Blob(b"d" * 16, data)
    for at in (2, 3):
        call = episode.calls[at]
        assert call.outcome is not None
        episode.calls[at] = dataclasses.replace(
            call, outcome=dataclasses.replace(call.outcome, messages=(shared, Blob(b"e" * 16, b"no image")))
        )

    assert account_of(episode.calls, LEDGER, note=True).images == 2


def test_what_is_written_is_read_back() -> None:
    account = account_of(_episode().calls, {**LEDGER, "problems": ["one", "two"]}, note=False)

    assert read_account(json.loads(json.dumps(dataclasses.asdict(account)))) == account
