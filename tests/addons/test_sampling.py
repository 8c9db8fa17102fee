import pytest

from dragoman.addons.errors import ContextTooLong
from dragoman.addons.messages import Sampling
from dragoman.addons.sampling import resolve_sampling
from dragoman.store.records import EpisodeSpec

ASKED = Sampling(
    temperature=0.2,
    top_p=0.5,
    top_k=3,
    min_p=0.1,
    presence_penalty=1.0,
    frequency_penalty=1.0,
    repetition_penalty=1.2,
    seed=7,
    max_tokens=128_000,
    stop=("END",),
)


def test_train_profile_keeps_only_the_runs_temperature_the_cap_and_stops() -> None:
    used = resolve_sampling(ASKED, EpisodeSpec(temperature=0.7), prompt_len=10, context_len=1000, max_reply_tokens=64)
    assert used == Sampling(temperature=0.7, top_p=1.0, max_tokens=64, stop=("END",))


def test_as_asked_keeps_what_was_asked() -> None:
    used = resolve_sampling(
        ASKED, EpisodeSpec(profile="as_asked"), prompt_len=10, context_len=10**6, max_reply_tokens=10**6
    )
    assert used == ASKED


def test_as_asked_is_neutral_where_nothing_was_asked() -> None:
    used = resolve_sampling(
        Sampling(), EpisodeSpec(profile="as_asked"), prompt_len=10, context_len=1000, max_reply_tokens=64
    )
    assert used == Sampling(temperature=1.0, top_p=1.0, max_tokens=64)


@pytest.mark.parametrize(("prompt_len", "expected"), [(10, 64), (990, 10), (999, 1)])
def test_max_tokens_is_the_least_of_asked_cap_and_room(prompt_len: int, expected: int) -> None:
    used = resolve_sampling(ASKED, EpisodeSpec(), prompt_len=prompt_len, context_len=1000, max_reply_tokens=64)
    assert used.max_tokens == expected


def test_no_room_is_the_context_error() -> None:
    with pytest.raises(ContextTooLong, match="1000 tokens > 999 maximum"):
        resolve_sampling(ASKED, EpisodeSpec(), prompt_len=1000, context_len=1000, max_reply_tokens=64)
