from dragoman.addons.messages import ReasoningDelta, ReplyEvent, ReplyFailed, TextDelta
from dragoman.addons.stream import merge_deltas


def test_neighbours_of_one_kind_are_joined_and_order_is_kept() -> None:
    end = ReplyFailed(ValueError("x"))
    events: list[ReplyEvent] = [
        ReasoningDelta("a"),
        ReasoningDelta("b"),
        TextDelta("c"),
        TextDelta("d"),
        ReasoningDelta("e"),
        end,
    ]
    assert merge_deltas(events) == [ReasoningDelta("ab"), TextDelta("cd"), ReasoningDelta("e"), end]


def test_nothing_stays_nothing() -> None:
    assert merge_deltas([]) == []
