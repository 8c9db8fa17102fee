"""The prompts and replies of a store as texts, for training a tokenizer."""

import json
from pathlib import Path

from dragoman.store.calls import full_prompt, read_calls
from dragoman.store.database import Database
from dragoman.store.episodes import list_episodes


def write_texts(store: str, model: Path, out: Path) -> None:
    """Write every prompt and reply of a store, decoded with the tokenizer of ``model``, as a JSON list."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model, local_files_only=True)
    texts: list[str] = []
    database = Database.open(store)
    with database.reading() as session:
        for summary in list_episodes(session, limit=100_000):
            for call in read_calls(session, summary.episode.id):
                if call.outcome is not None and call.outcome.completion_ids is not None:
                    ids = [*full_prompt(session, call.arrival.id), *call.outcome.completion_ids]
                    texts.append(str(tokenizer.decode(ids)))
    database.close()
    out.write_text(json.dumps(texts))
    print(f"{len(texts)} calls, {sum(map(len, texts)):,} characters")
