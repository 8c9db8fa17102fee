"""Groups as samples: which episodes count, advantages, what is dropped and why, and where every token went."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.store.leases import LeasedEpisode, LeasedGroup
from dragoman.store.records import EpisodeEnd, EpisodeInfo, EpisodeSpec
from dragoman.trainer.samples import DroppedGroup, PreparedGroup, Rules, group_advantages, prepare_group
from tests.store_calls import Episode, episodes
from tests.trainer.made_groups import VERSIONS, MadeEpisode, MadeGroup, Maker, flat, gradient_groups, leased


def even(tokens: Any) -> list[float]:
    return [-1.0] * (len(tokens) - 1)


MAKE = Maker(even)


def prepared(group: MadeGroup, rules: Rules = Rules(), newest: int = 5) -> PreparedGroup:  # noqa: B008
    found = prepare_group(leased(group), rules, VERSIONS, newest)
    assert isinstance(found, PreparedGroup), found
    return found


def dropped(group: MadeGroup | LeasedGroup, rules: Rules = Rules(), newest: int = 5) -> DroppedGroup:  # noqa: B008
    found = prepare_group(group if isinstance(group, LeasedGroup) else leased(group), rules, VERSIONS, newest)
    assert isinstance(found, DroppedGroup)
    assert found.tokens.trained == 0
    assert sum(found.tokens.excluded.values()) == found.tokens.sampled
    return found


def test_an_episode_has_one_advantage_for_all_its_traces() -> None:
    first = gradient_groups(Maker(even))[0]
    found = prepared(first)
    rewards = np.array([1.0, 0.0, 0.25])
    wanted = (rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-4)
    assert [sample.episode_id for sample in found.samples] == ["e00000000011"] * 3 + ["e00000000012"] + [
        "e00000000013"
    ] * 2
    assert [sample.advantage for sample in found.samples] == pytest.approx(
        [wanted[0]] * 3 + [wanted[1]] + [wanted[2]] * 2
    )
    by_episode = {sample.episode_id: sample.episode_tokens for sample in found.samples}
    assert sum(by_episode.values()) == found.tokens.trained == sum(sample.trained for sample in found.samples)
    assert found.tokens.excluded.keys() == {"side", "constrained"}
    assert sum(found.tokens.excluded.values()) + found.tokens.trained == found.tokens.sampled


def test_advantages() -> None:
    assert group_advantages([1.0, 0.0], "none") == [0.5, -0.5]
    assert group_advantages([1.0, 0.0], "group") == pytest.approx([0.5 / (0.5**0.5 + 1e-4), -0.5 / (0.5**0.5 + 1e-4)])
    assert group_advantages([3.0], "group") == [0.0]


def test_which_episodes_count() -> None:
    second = gradient_groups(Maker(even))[1]
    found = prepared(second)
    assert found.rewards == (0.9, 0.0, 0.4, 0.4)
    assert found.episodes == {"counted": 4, "failed": 1}
    assert "episode_failed" in found.tokens.excluded
    excluded = prepared(second, Rules(timed_out="exclude"))
    assert excluded.rewards == (0.9, 0.4, 0.4)
    assert excluded.episodes == {"counted": 3, "failed": 1, "timed_out": 1}
    assert prepared(second, Rules(timed_out_reward=-1.0)).rewards == (0.9, -1.0, 0.4, 0.4)


@pytest.mark.parametrize(
    ("group", "reason"),
    [
        pytest.param(flat(MAKE, 1, [1.0]), "no_baseline", id="alone"),
        pytest.param(flat(MAKE, 1, [0.1, 0.1, 0.1]), "zero_variance", id="equal"),
        pytest.param(
            MadeGroup(1, (MAKE.simple("a", 1.0), MAKE.simple("b", 0.0, end="failed"))), "no_baseline", id="failed"
        ),
        pytest.param(
            MadeGroup(1, (MadeEpisode("a", (), 1.0), MadeEpisode("b", (), 0.0))), "no_tokens", id="without calls"
        ),
        pytest.param(flat(MAKE, 1, [1.0, 0.0], version="policy-v0old"), "stale", id="stale"),
        pytest.param(flat(MAKE, 1, [1.0, 0.0], version="elsewhere"), "unknown_version", id="unknown version"),
    ],
)
def test_dropped(group: MadeGroup, reason: str) -> None:
    assert dropped(group).reason == reason


def test_staleness_is_the_oldest_token_of_the_whole_group() -> None:
    one, two = MAKE.simple("a", 1.0, version="policy-v5"), MAKE.simple("b", 0.0, version="policy-v3")
    group = MadeGroup(1, (one, two))
    assert dropped(group, Rules(max_staleness=1)).reason == "stale"
    found = prepared(group, Rules(max_staleness=2))
    tokens = [sample.trained for sample in found.samples]
    assert found.oldest_lag == 2
    assert found.mean_lag == pytest.approx(2 * tokens[1] / sum(tokens))
    assert prepared(group, Rules(max_staleness=None), newest=500).oldest_lag == 497


@pytest.mark.parametrize(
    ("sampling", "says"),
    [
        ({"temperature": 0.7}, "temperature 0.7, and this run trains at 1"),
        ({"temperature": 0.0}, "temperature 0"),
        ({}, "is not stored"),
        ({"temperature": 1.0, "top_p": 0.9}, "top_p 0.9"),
        ({"temperature": 1.0, "top_k": 40}, "top_k 40"),
        ({"temperature": 1.0, "repetition_penalty": 1.1}, "sampling profile `train`"),
    ],
)
def test_another_behaviour_policy_is_refused(sampling: dict[str, Any], says: str) -> None:
    calls = tuple(replace(call, sampling=sampling) for call in MAKE.chain(1))
    group = MadeGroup(1, (MadeEpisode("a", calls, 1.0), MAKE.simple("b", 0.0)))
    found = dropped(group)
    assert found.reason == "sampling"
    assert says in found.detail


def test_a_run_at_another_temperature() -> None:
    group = flat(Maker(even, temperature=0.7), 1, [1.0, 0.0])
    assert prepared(group, Rules(temperature=0.7)).samples
    assert dropped(group).reason == "sampling"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        pytest.param({"logprobs": (float("nan"), -1.0)}, "not finite", id="nan"),
        pytest.param({"logprobs": (-9999.0, -1.0)}, "-9999", id="no evidence"),
        pytest.param({"logprobs": (0.5, -1.0)}, "none can be above 0", id="above 0"),
        pytest.param({"logprobs": (-1.0,)}, "one logprob for each", id="short"),
        pytest.param({"completion": (5, 97)}, "token id 97", id="foreign id"),
        pytest.param({"completion": (5, -1)}, "token id -1", id="negative id"),
        pytest.param({"prompt": ()}, "nothing stands before it", id="no prompt"),
        pytest.param({"parent": "c9999999999999999999"}, "parent", id="no parent"),
    ],
)
def test_a_corrupt_trace_drops_its_group_with_a_reason(change: dict[str, Any], says: str) -> None:
    call = replace(MAKE.call([5, 6]), completion=(5, 6), logprobs=(-1.0, -1.0))
    group = MadeGroup(1, (MAKE.simple("a", 1.0), MAKE.simple("b", 0.0)))
    whole = leased(MadeGroup(1, (MadeEpisode("b", (call,), 0.0),))).episodes[0]
    (info,) = whole.calls
    assert info.outcome is not None
    fields = {
        {"prompt": "prompt_ids", "completion": "completion_ids", "parent": "parent_id"}.get(name, name): value
        for name, value in change.items()
    }
    if "prompt" in change:
        fields["prompt_len"] = 0
    for name in ("prompt_ids", "completion_ids", "logprobs"):
        if name in fields:
            fields[name] = np.array(fields[name], np.float32 if name == "logprobs" else np.int32)
    broken = LeasedEpisode(whole.info, (replace(info, outcome=replace(info.outcome, **fields)),))
    found = dropped(replace(leased(group), episodes=(leased(group).episodes[0], broken)), Rules(vocabulary=97))
    assert found.reason == "corrupt"
    assert says in found.detail
    assert "episode b" in found.detail


def test_a_long_trace_is_cut_between_turns_and_its_rest_is_counted() -> None:
    group = flat(MAKE, 1, [1.0, 0.0], turns=4)
    whole = prepared(group)
    longest = max(len(sample.token_ids) for sample in whole.samples)
    cut = prepared(group, Rules(max_trace_length=longest - 1))
    assert len(cut.samples) == 2
    assert cut.tokens.excluded["too_long"] == whole.tokens.trained - cut.tokens.trained > 0
    assert dropped(group, Rules(max_trace_length=1)).reason == "no_tokens"


def test_each_call_trains_the_same_tokens_in_more_rows() -> None:
    group = flat(MAKE, 1, [1.0, 0.0], turns=3)
    merged, each = prepared(group), prepared(group, Rules(each_call=True))
    assert (len(merged.samples), len(each.samples)) == (2, 6)
    assert merged.tokens == each.tokens


@settings(max_examples=60)
@given(st.data())
def test_every_sampled_token_of_any_group_is_accounted_for(data: st.DataObject) -> None:
    members: list[Episode] = [data.draw(episodes(episode_id=f"e{n}", most=8)) for n in range(3)]
    found = []
    for number, episode in enumerate(members):
        ends: tuple[EpisodeEnd, ...] = ("completed", "completed", "timed_out", "failed", "abandoned")
        end = data.draw(st.sampled_from(ends))
        spec = EpisodeSpec("t", "g")
        reward = data.draw(st.sampled_from((None, 0.0, 1.0)))
        info = EpisodeInfo(episode.id, spec, float(number), 1e9, 9.0, end, None, reward)
        found.append(LeasedEpisode(info, tuple(episode.calls)))
    group = LeasedGroup(1, "t", "g", 9.0, tuple(found))
    result = prepare_group(group, Rules(), {"base": 0, "v1": 1, "v2": 2}, 2)
    assert result.tokens.trained + sum(result.tokens.excluded.values()) == result.tokens.sampled
    sampled = sum(len(episode.completions[call.arrival.id]) for episode in members for call in episode.calls)
    assert result.tokens.sampled == sampled
