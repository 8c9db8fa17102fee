"""Samples as micro-batches: none is lost, ranks fit together, and weights sum up to what each loss divides by."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.trainer.batch import LossType, collate, padded_tokens, plan_step, weight
from dragoman.trainer.samples import Sample

LOSSES: tuple[LossType, ...] = ("cispo", "dapo", "grpo", "dr_grpo", "gspo")


def sample(length: int, trained: list[int], *, episode: str = "e", tokens: int | None = None) -> Sample:
    mask = np.zeros(length, np.bool_)
    mask[trained] = True
    logprobs = np.where(mask, -np.arange(length), 0).astype(np.float32)
    return Sample(
        1,
        episode,
        np.arange(1, length + 1, dtype=np.int32),
        mask,
        logprobs,
        0.5,
        len(trained) if tokens is None else tokens,
    )


@given(
    lengths=st.lists(st.integers(2, 60), min_size=1, max_size=20),
    world=st.integers(1, 4),
    rows=st.integers(1, 5),
    max_tokens=st.one_of(st.none(), st.integers(1, 100)),
)
def test_every_sample_is_in_one_place_and_ranks_are_equal(
    lengths: list[int], world: int, rows: int, max_tokens: int | None
) -> None:
    samples = [sample(length, [length - 1], episode=f"e{n}") for n, length in enumerate(lengths)]
    step = plan_step(samples, loss="cispo", world=world, rows=rows, max_tokens=max_tokens)
    placed = [one.episode_id for rank in step.ranks for micro in rank for one in micro if one is not None]
    assert Counter(placed) == Counter(one.episode_id for one in samples)
    assert len(step.ranks) == world
    assert len({tuple(len(micro) for micro in rank) for rank in step.ranks}) == 1
    for rank in step.ranks:
        for micro in rank:
            assert 1 <= len(micro) <= rows
            longest = max((len(one.token_ids) for one in micro if one is not None), default=0)
            assert max_tokens is None or len(micro) == 1 or len(micro) * longest <= max_tokens
    assert padded_tokens(step) >= sum(lengths)


@pytest.mark.parametrize("loss", LOSSES)
def test_weights_and_items(loss: LossType) -> None:
    samples = [sample(9, [3, 4], episode="a", tokens=5), sample(9, [3, 4, 5], episode="a", tokens=5)]
    samples.append(sample(9, [8], episode="b"))
    step = plan_step(samples, loss=loss, world=2, rows=2, max_tokens=None, length_constant=10)
    shares = [one.trained * weight(one, step) / step.items for one in samples]
    wanted = {
        "cispo": [2 / 6, 3 / 6, 1 / 6],
        "dapo": [2 / 6, 3 / 6, 1 / 6],
        "grpo": [2 / 10, 3 / 10, 1 / 2],
        "gspo": [2 / 10, 3 / 10, 1 / 2],
        "dr_grpo": [2 / 20, 3 / 20, 1 / 20],
    }
    assert shares == pytest.approx(wanted[loss])
    assert min(weight(one, step) for one in samples) >= 1


def test_arrays() -> None:
    rows = (sample(6, [2, 5]), sample(5, [4]), None)
    step = plan_step([rows[0], rows[1]], loss="dapo", world=1, rows=3, max_tokens=None)
    arrays = collate(rows, step, 0)
    assert arrays.prompt_ids.tolist() == [[1, 2], [1, 2], [0, 0]]
    assert arrays.prompt_mask.tolist() == [[1, 1], [1, 1], [1, 0]]
    assert arrays.completion_ids.tolist() == [[3, 4, 5, 6], [3, 4, 5, 0], [0, 0, 0, 0]]
    assert arrays.completion_mask.tolist() == [[1, 1, 1, 1], [1, 1, 1, 0], [0, 0, 0, 0]]
    assert arrays.weights.tolist() == [[1, 0, 0, 1], [0, 0, 1, 0], [0, 0, 0, 0]]
    assert arrays.logprobs.tolist() == [[-2, 0, 0, -5], [0, 0, -4, 0], [0, 0, 0, 0]]
    assert arrays.advantages.tolist() == [0.5, 0.5, 0.0]


def test_a_rank_of_fillers_has_something_to_attend_to() -> None:
    step = plan_step([sample(6, [2])], loss="dapo", world=2, rows=1, max_tokens=None)
    assert step.ranks[1] == ((None,),)
    arrays = collate(step.ranks[1][0], step, 7)
    assert (arrays.prompt_ids.tolist(), arrays.completion_ids.tolist()) == ([[7]], [[7]])
    assert arrays.prompt_mask.sum() == 1
    assert arrays.weights.sum() == 0


def test_a_step_needs_samples() -> None:
    with pytest.raises(ValueError, match="at least one sample"):
        plan_step([], loss="dapo", world=1, rows=1, max_tokens=None)
