"""Which call a request continues: the longest exact parent in the episode, or a fork with its reason."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.addons.lineage import EpisodeLineage, Node, shared_prefix, system_key
from dragoman.addons.messages import Message, ReplyPart, TextPart, ToolCallPart, ToolResultPart
from dragoman.store.records import TokenIds

SEED = b"seed"


def call_id(number: int) -> str:
    return f"call{number:016d}"


def user(text: str) -> Message:
    return Message("user", (TextPart(text),))


def says(*parts: ReplyPart) -> Message:
    return Message("assistant", parts)


def tool_call(number: int, at: int = 0) -> ToolCallPart:
    return ToolCallPart(f"toolu_{call_id(number)}_{at}", "bash", "{}")


def result(number: int, text: str = "out", at: int = 0) -> Message:
    return Message("tool", (ToolResultPart(f"toolu_{call_id(number)}_{at}", (TextPart(text),)),))


SYSTEM = Message("system", (TextPart("You are an agent."),))


class Episode:
    def __init__(self) -> None:
        self.lineage = EpisodeLineage()
        self.count = 0

    def answer(self, messages: Sequence[Message], *reply: ReplyPart, seed: bytes = SEED) -> Node:
        """Ask, and answer with ``reply``; tokens are made up, 10 a prompt and 5 a completion."""
        found = self.lineage.find(tuple(messages), seed)
        number, self.count = self.count, self.count + 1
        exact = found.parent is not None and found.fork_reason is None
        node = Node(
            call_id=call_id(number),
            key=found.key,
            seed=seed,
            system=system_key(messages),
            reply=reply,
            parent=found.parent if exact else None,
            shared_len=found.parent.stream_len if exact and found.parent else 0,
            prompt_ids=np.arange(10, dtype=np.int32) + 100 * number,
            completion_ids=np.arange(5, dtype=np.int32) + 100 * number + 50,
            message_digests=(),
        )
        self.lineage.add(node)
        return node


def test_a_first_request_starts_anew() -> None:
    found = EpisodeLineage().find((SYSTEM, user("hi")), SEED)
    assert (found.parent, found.fork_reason, found.new_messages) == (None, None, (SYSTEM, user("hi")))


def test_a_turn_continues_its_call_and_knows_what_is_new() -> None:
    episode = Episode()
    first = episode.answer([SYSTEM, user("hi")], TextPart("I look."), tool_call(0))
    said = (SYSTEM, user("hi"), says(*first.reply), result(0), user("go on"))
    found = episode.lineage.find(said, SEED)
    assert (found.parent, found.fork_reason, found.echo_changed) == (first, None, 0)
    assert found.new_messages == (result(0), user("go on"))


def test_a_long_session_continues_turn_by_turn() -> None:
    episode = Episode()
    said: list[Message] = [SYSTEM, user("hi")]
    previous = None
    for number in range(8):
        node = episode.answer(said, tool_call(number))
        assert node.parent is previous
        said += [says(*node.reply), result(number)]
        previous = node
    assert previous is not None
    assert len(previous.stream()) == previous.stream_len == 8 * 15
    assert previous.stream().tolist() == [100 * n + k for n in range(8) for k in (*range(10), *range(50, 55))]


def test_echoes_may_change_under_the_echo_rules_and_are_counted() -> None:
    episode = Episode()
    first = episode.answer([user("hi")], TextPart("I look.\n"), tool_call(0))
    found = episode.lineage.find((user("hi"), says(TextPart("I look."), tool_call(0)), result(0)), SEED)
    assert (found.parent, found.echo_changed) == (first, 1)


def test_the_id_inside_an_echoed_id_decides_between_equal_replies() -> None:
    episode = Episode()
    nodes = [episode.answer([user("hi")], tool_call(number)) for number in range(3)]
    for number in (1, 0, 2):
        echoed = ToolCallPart(f"bash__toolu_{call_id(number)}_0", "bash", "{}")
        found = episode.lineage.find((user("hi"), says(echoed), result(number)), SEED)
        assert found.parent is nodes[number]


def test_equal_texts_from_the_same_question_may_both_be_continued() -> None:
    episode = Episode()
    episode.answer([user("hi")], TextPart("ok"))
    episode.answer([user("hi")], TextPart("ok"))
    said = [user("hi"), says(TextPart("ok")), user("more")]
    second = episode.answer(said, TextPart("fine"))
    found = episode.lineage.find((*said, says(TextPart("fine")), user("again")), SEED)
    assert found.parent is second


def test_interleaved_threads_never_mix() -> None:
    episode = Episode()
    threads: list[list[Message]] = [[SYSTEM, user("a")], [SYSTEM, user("b")], [user("a")]]
    last: list[Node | None] = [None, None, None]
    for turn in range(4):
        for number, said in enumerate(threads):
            node = episode.answer(said, TextPart("same words"))
            assert node.parent is last[number], (turn, number)
            last[number] = node
            said += [says(TextPart("same words")), user("go")]


def test_an_older_branch_can_be_continued() -> None:
    episode = Episode()
    first = episode.answer([user("hi")], TextPart("one"))
    episode.answer([user("hi"), says(TextPart("one")), user("x")], TextPart("two"))
    other = episode.lineage.find((user("hi"), says(TextPart("one")), user("y")), SEED)
    assert (other.parent, other.fork_reason) == (first, None)


@pytest.mark.parametrize(
    ("said", "seed", "reason"),
    [
        ([SYSTEM, user("hi"), says(tool_call(0)), result(0)], b"other tools", "tools_changed"),
        (
            [Message("system", (TextPart("Be brief."),)), user("hi"), says(tool_call(0)), result(0)],
            SEED,
            "system_changed",
        ),
        ([SYSTEM, user("hi, and a reminder"), says(tool_call(0)), result(0)], SEED, "history_edited"),
        ([SYSTEM, user("hi"), user("more"), says(tool_call(0)), result(0)], SEED, "history_edited"),
        ([SYSTEM, user("hi"), says(TextPart("put in"), tool_call(0)), result(0)], SEED, "history_edited"),
        ([SYSTEM, user("hi"), says(TextPart("never said")), user("x")], SEED, "unknown_parent"),
        ([SYSTEM, user("hi"), says(tool_call(7)), result(7)], SEED, "unknown_parent"),
    ],
)
def test_what_is_no_exact_echo_is_a_fork_with_its_reason(said: list[Message], seed: bytes, reason: str) -> None:
    episode = Episode()
    first = episode.answer([SYSTEM, user("hi")], tool_call(0))
    found = episode.lineage.find(tuple(said), seed)
    assert found.fork_reason == reason
    assert found.parent is (None if reason == "unknown_parent" else first)


def test_a_system_message_added_later_is_new_and_no_fork() -> None:
    episode = Episode()
    first = episode.answer([SYSTEM, user("hi")], TextPart("one"))
    later = Message("system", (TextPart("Mind the time."),))
    found = episode.lineage.find((SYSTEM, user("hi"), says(TextPart("one")), later, user("x")), SEED)
    assert (found.parent, found.fork_reason, found.new_messages) == (first, None, (later, user("x")))


def test_an_edited_last_turn_forks_from_the_call_it_edits() -> None:
    episode = Episode()
    first = episode.answer([user("hi")], TextPart("one"))
    said = [user("hi"), says(TextPart("one")), user("x")]
    second = episode.answer(said, tool_call(1))
    found = episode.lineage.find((*said[:2], user("x, and hurry"), says(tool_call(1)), result(1)), SEED)
    assert (found.parent, found.fork_reason) == (second, "history_edited")
    assert found.position == 2
    assert first.call_id == call_id(0)


def test_a_compacted_history_starts_anew_without_a_reason() -> None:
    episode = Episode()
    episode.answer([SYSTEM, user("hi")], TextPart("one"))
    found = episode.lineage.find((SYSTEM, user("Summary of what happened: …")), SEED)
    assert (found.parent, found.fork_reason) == (None, None)


def test_example_turns_that_nobody_sampled_are_part_of_the_question() -> None:
    episode = Episode()
    said = [user("example"), says(TextPart("example answer")), user("real")]
    assert episode.lineage.find(tuple(said), SEED).fork_reason == "unknown_parent"
    first = episode.answer(said, TextPart("one"))
    found = episode.lineage.find((*said, says(TextPart("one")), user("next")), SEED)
    assert (found.parent, found.fork_reason) == (first, None)


@pytest.mark.parametrize("reply", [(), (TextPart("\n"),)])
def test_an_empty_reply_that_is_replayed_is_continued(reply: tuple[ReplyPart, ...]) -> None:
    episode = Episode()
    other = episode.answer([user("hi")], TextPart("Hello."))
    first = episode.answer([user("hi")], *reply)
    said = (user("hi"), says(), user("well?"))
    found = episode.lineage.find(said, SEED)
    assert (found.parent, found.position, found.new_messages, found.fork_reason) == (first, 2, said[2:], None)
    second = episode.answer(said, TextPart("Yes."))
    assert second.parent is first
    found = episode.lineage.find((*said, says(*second.reply), user("on")), SEED)
    assert (found.parent, found.new_messages) == (second, (user("on"),))
    # Left out, or where no reply was empty, it says nothing.
    assert episode.lineage.find((user("hi"), user("well?")), SEED).parent is None
    found = episode.lineage.find((user("hi"), says(*other.reply), user("on"), says(), user("well?")), SEED)
    assert (found.parent, found.new_messages, found.fork_reason) == (other, (user("on"), user("well?")), None)


def test_codex_splits_a_reply_into_two_messages() -> None:
    episode = Episode()
    first = episode.answer([user("hi")], TextPart("I look."), tool_call(0))
    said = (user("hi"), says(TextPart("I look.")), says(tool_call(0)), result(0))
    assert episode.lineage.find(said, SEED).parent is first


def test_calls_that_another_gateway_answered_can_be_adopted() -> None:
    mine, theirs = Episode(), Episode()
    first = mine.answer([user("hi")], TextPart("Hello."))
    theirs.answer([user("hi")], TextPart("Hello."))
    second = theirs.answer([user("hi"), says(*first.reply), user("on")], TextPart("Sure."))
    said = (user("hi"), says(*first.reply), user("on"), says(*second.reply), user("more"))
    assert mine.lineage.find(said, SEED).fork_reason == "unknown_parent"
    mine.lineage.adopt(theirs.lineage)
    found = mine.lineage.find(said, SEED)
    assert (found.parent, found.fork_reason) == (second, None)
    assert mine.lineage.nodes[first.call_id] is first, "what is known stays"


def test_nothing_resolves_outside_its_episode() -> None:
    Episode().answer([user("hi")], tool_call(0))
    found = Episode().lineage.find((user("hi"), says(tool_call(0)), result(0)), SEED)
    assert (found.parent, found.fork_reason) == (None, "unknown_parent")


@given(st.data())
def test_every_conversation_finds_the_call_it_grew_from(data: st.DataObject) -> None:
    """Random trees: at each step some earlier call is continued or a new conversation begins."""
    episode = Episode()
    grown: list[tuple[Node, list[Message]]] = []
    for number in range(data.draw(st.integers(1, 12))):
        start = data.draw(st.integers(-1, len(grown) - 1))
        if start < 0:
            parent, said = None, [user(f"start {number}")]
        else:
            parent, earlier = grown[start]
            new = data.draw(st.sampled_from([[user("more")], [user("other")], [result(start)]]))
            said = [*earlier, says(*parent.reply), *new]
        reply = data.draw(st.sampled_from([(TextPart("ok"),), (TextPart("well"), tool_call(number))]))
        found = episode.lineage.find(tuple(said), SEED)
        assert found.fork_reason is None
        # Calls that were asked and answered alike are the same to a harness that names none of them.
        same = [node for node, words in grown if start >= 0 and [*words, says(*node.reply)] == said[: len(words) + 1]]
        assert found.parent is None if parent is None else found.parent in same
        grown.append((episode.answer(said, *reply), said))


@given(st.lists(st.integers(0, 3), max_size=20), st.lists(st.integers(0, 3), max_size=20))
def test_shared_prefix(one: list[int], other: list[int]) -> None:
    def array(values: list[int]) -> TokenIds:
        return np.array(values, dtype=np.int32)

    length = shared_prefix(array(one), array(other))
    assert one[:length] == other[:length]
    assert one[length : length + 1] != other[length : length + 1] or length == min(len(one), len(other))
