import pytest
from transformers import AutoTokenizer

from dragoman.trainer import tiny_words
from tests.models import tiny_model_folder


@pytest.mark.parametrize("words", [tiny_words.COMMON, tiny_words.PROGRAMMING, tiny_words.ENGLISH])
def test_words_are_single_tokens(words: str) -> None:
    """What the lists are for; a word that is in none of them is several."""
    tokenizer = AutoTokenizer.from_pretrained(tiny_model_folder())
    several = [word for word in words.split() if len(tokenizer.encode(f" {word}")) > 1]
    assert several == []
    assert len(tokenizer.encode(" quizzaciously")) > 2
