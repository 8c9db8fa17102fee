"""``dragoman show``: an episode's calls with their numbers, what went wrong, messages and tokens."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

CALL = "call0000000000000001"


def test_an_episode(run: Callable[..., Any], filled_store: str) -> None:
    result = run("show", "abc")
    assert result.code == 0
    facts = {line[:13].strip(): line[13:].strip() for line in result.out.splitlines()[:13]}
    assert facts["episode"] == "abcdefgh1234"
    assert facts["sampling"] == "train, temperature 1"
    assert facts["end"] == "completed: all done"
    assert facts["reward"] == "0.75"
    assert facts["tokens"] == "6 in, 4 out"
    assert facts["traces"] == "1 main"
    assert facts["mean logprob"] == "-0.8125"
    assert facts["policy"] == "base, policy-v1"
    assert facts["database"] == filled_store
    rows = [line.split() for line in result.out.splitlines() if line[:1].isdigit()]
    assert rows[0][:8] == ["1", CALL[:10], "answered", "anthropic", "/v1/messages", "4", "3", "-0.750"]
    assert rows[0][8:] == ["tool_calls", "base,", "policy-v1", "-", "0.75", "s", "3.50", "s"]
    assert rows[1][2:] == ["refused", "anthropic", "/v1/messages", *["-"] * 7, "0.10", "s"]
    assert rows[3][2:] == ["arrived", "anthropic", "/v1/messages", *["-"] * 8]
    assert "call 2 refused with 400: unsupported: no [audio] here" in result.out
    assert "call 3 side call" in result.out
    assert "call 4 no outcome yet" in result.out
    assert "call 1 " not in result.out


def test_forks_retries_and_messages_that_stand_with_the_parent(run: Callable[..., Any], filled_store: str) -> None:
    from sqlalchemy import update

    from dragoman.store.database import Database
    from dragoman.store.models import Call

    side = "call0000000000000003"
    forked = {"parent_id": CALL, "shared_len": 1, "fork_reason": "history_edited", "messages_kept": 1, "kind": "main"}
    retry = {"status": "answered", "retry_of": CALL, "error_code": None, "error_message": None}
    database = Database.open(filled_store)
    with database.session() as session:
        session.execute(update(Call).where(Call.id == side).values(**forked))
        session.execute(update(Call).where(Call.id == "call0000000000000002").values(**retry))
    database.close()
    result = run("show", "abcd", "--messages")
    assert "traces        2 main" in result.out
    assert "history_edited" in next(line for line in result.out.splitlines() if line.startswith("3 "))
    assert f"call 2 a retry: it was given the reply of call {CALL}" in result.out
    assert f"(1 before these, as in call {CALL})" in result.out
    shown = json.loads(run("show", "abcd", "--json", "--messages").out)
    assert shown["traces"] == "2 main"
    assert [call.get("messages_kept") for call in shown["calls"]] == [0, 0, 1, None]
    with database.session() as session:
        session.execute(update(Call).where(Call.id == side).values(shared_len=9))
    database.close()
    assert "traces        none can be built: call 'call0000000000000003': it keeps 9 tokens" in run("show", "abcd").out


def test_calls_that_were_only_looked_at_say_so(run: Callable[..., Any], filled_store: str) -> None:
    from sqlalchemy import update

    from dragoman.store.database import Database
    from dragoman.store.models import Call

    assert "real provider" not in run("show", "abcd").out
    database = Database.open(filled_store)
    with database.session() as session:
        session.execute(update(Call).where(Call.id == CALL).values(status="observed"))
    database.close()
    assert "1 of them answered by the real provider" in run("show", "abcd").out


def test_one_call_with_messages_and_tokens(run: Callable[..., Any], filled_store: str) -> None:
    result = run("show", CALL, "--messages", "--tokens")
    text = result.out
    assert "tools: bash" in text
    assert "[user]\n  list the files [here]\n  please\n[assistant] (the reply)\n  I will.\n" in text
    assert '  → bash {"cmd":"ls"}  (toolu_1)' in text
    tokens = [line.split() for line in text.splitlines()[-3:]]
    assert tokens == [["0", "7", "-0.5000"], ["1", "8", "-1.5000"], ["2", "2", "-0.2500"]]
    assert "dall" not in text


def test_json(run: Callable[..., Any], filled_store: str) -> None:
    shown = json.loads(run("show", "abc", "--json", "--tokens", "--messages").out)
    assert (shown["id"], shown["end"], shown["reward"], shown["spec"]["task"]) == (
        "abcdefgh1234",
        "completed",
        0.75,
        "ls-task",
    )
    assert shown["mean_logprob"] == -0.8125
    first = shown["calls"][0]
    assert first["completion_ids"] == [7, 8, 2]
    assert first["prompt_ids"] == [1, 2, 3, 4]
    assert first["logprobs"] == [-0.5, -1.5, -0.25]
    assert first["policy_spans"] == [["base", 0, 2], ["policy-v1", 2, 3]]
    assert first["messages"][0]["role"] == "user"
    assert first["reply"]["parts"][1]["name"] == "bash"
    assert first["trouble"] is None
    assert shown["calls"][3]["status"] == "arrived"
    lean = json.loads(run("show", "abc", "--json").out)["calls"][0]
    assert not {"completion_ids", "messages"} & set(lean)


def test_tokens_as_text(run: Callable[..., Any], filled_store: str, tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models

    vocabulary = {f"t{number}": number for number in range(10)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="t0"))
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "t0"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    result = run("show", CALL, "--tokens", "--tokenizer", str(tmp_path))
    assert [line.split()[-1] for line in result.out.splitlines()[-3:]] == ["'t7'", "'t8'", "'t2'"]
    missing = run("show", CALL, "--tokens", "--tokenizer", str(tmp_path / "no"))
    assert missing.code == 1
    assert "is no folder" in missing.err


@pytest.mark.parametrize(("arguments", "says"), [(["ab"], "several ids"), (["zzz"], "no episode or call")])
def test_not_found(run: Callable[..., Any], filled_store: str, arguments: list[str], says: str) -> None:
    result = run("show", *arguments)
    assert result.code == 1
    assert says in result.err


def test_an_empty_episode(run: Callable[..., Any], filled_store: str) -> None:
    result = run("show", "abz")
    assert result.code == 0
    assert "no calls yet" in result.err
    assert "none (ad hoc)" in result.out


def test_artefacts_are_listed_and_printed_as_they_are(run: Callable[..., Any], filled_store: str) -> None:
    from dragoman.store.artefacts import write_artefacts
    from dragoman.store.database import Database
    from dragoman.store.records import Artefact

    assert "--artefact" not in run("show", "abc").out
    database = Database.open(filled_store)
    with database.session() as session:
        given = [
            Artefact("changes.diff", "text/x-diff", b"+caf\xe9\n"),
            Artefact("stdout.txt", "text/plain", b"", 12345),
        ]
        write_artefacts(session, "abcdefgh1234", given, now=1.0)
    database.close()

    shown = run("show", "abc")
    assert "\nartefacts (print one with --artefact NAME)\n  changes.diff   6 bytes\n" in shown.out
    assert "  stdout.txt     0 bytes, 12,345 more left out\n" in shown.out
    assert [entry["size"] for entry in json.loads(run("show", "abc", "--json").out)["artefacts"]] == [6, 0]
    cut = run("show", "abc", "--artefact", "stdout.txt")
    assert (cut.out, cut.err) == ("", "stdout.txt was longer: 12,345 bytes are left out of it\n")
    missing = run("show", "abc", "--artefact", "x")
    assert missing.code == 1
    assert "has no artefact 'x'; it has: changes.diff, stdout.txt" in missing.err


def test_an_artefact_of_any_bytes_comes_out_whole(filled_store: str) -> None:
    import subprocess
    import sys

    from dragoman.store.artefacts import write_artefacts
    from dragoman.store.database import Database
    from dragoman.store.records import Artefact

    database = Database.open(filled_store)
    with database.session() as session:
        write_artefacts(session, "abcdefgh1234", [Artefact("x", "text/plain", bytes(range(256)))], now=1.0)
    database.close()

    command = [sys.executable, "-m", "dragoman", "show", "abc", "--artefact", "x"]
    assert subprocess.run(command, capture_output=True, check=True).stdout == bytes(range(256))
