"""``dragoman eval``: its formats, its options, and what it says when they make no sense."""

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dragoman.cli.eval_view import markdown_line
from dragoman.store.calls import write_arrivals, write_outcomes
from dragoman.store.database import Database
from dragoman.store.episodes import end_episode, open_episode, set_reward
from dragoman.store.packing import digest
from dragoman.store.records import EpisodeSpec, PolicySpan
from tests.store_calls import Episode

Run = Callable[..., Any]
VERSIONS = {"base": {"one": 0.0, "two": 1.0, "three": 0.0}, "policy-v3": {"one": 1.0, "two": 0.0, "three": 1.0}}


@pytest.fixture
def store(tmp_path: Path) -> str:
    """Three tasks, two episodes each, under two versions: both episodes of a task get the same reward."""
    url = f"sqlite:///{tmp_path / 'evals.db'}"
    database = Database.open(url)
    with database.session() as session:
        for version, rewards in VERSIONS.items():
            for task, reward in rewards.items():
                for number in range(2):
                    calls = Episode(f"{version.replace('-', '')}{task}{number}")
                    spans = (PolicySpan(version, 0, 1),)
                    calls.add(f"{calls.id}a", [1, 2], [3], spans=spans)
                    calls.add(f"{calls.id}b", [1, 2, 3, 4], [5], parent=f"{calls.id}a", spans=spans)
                    about = {"harness": "pi", "run": f"run-{version}", "split": "test"}
                    open_episode(
                        session,
                        EpisodeSpec(task=task, metadata=about),
                        episode_id=calls.id,
                        token_hash=digest(calls.id.encode()).hex() * 2,
                        now=100.0,
                        expires_at=1e9,
                    )
                    write_arrivals(session, [call.arrival for call in calls.calls])
                    write_outcomes(session, [call.outcome for call in calls.calls if call.outcome is not None])
                    set_reward(session, calls.id, reward, components=None, now=120.0)
                    end_episode(session, calls.id, "completed", reason=None, now=130.0)
        open_episode(
            session, EpisodeSpec(task="one"), episode_id="open", token_hash="0" * 64, now=100.0, expires_at=1e9
        )
    database.close()
    return url


def test_table(run: Run, store: str) -> None:
    result = run("eval", "--store", store, "--k", "1,2")

    assert result.code == 0
    lines = [line.split() for line in result.out.splitlines()]
    assert lines[0][:7] == ["harness", "version", "split", "episodes", "tasks", "pass@1", "pass@2"]
    assert lines[1][:8] == ["pi", "base", "test", "6", "3", "0.333", "[0.061,", "0.792]"]
    assert lines[2][:8] == ["pi", "policy-v3", "test", "6", "3", "0.667", "[0.208,", "0.939]"]
    assert lines[1][-7:] == ["2.0", "6", "2", "0.00", "100.0%", "30", "s"]
    assert "An episode passes with a reward of 1 or more." in result.out
    assert "Not in the rates: 1 still open." in result.out


def test_json(run: Run, store: str) -> None:
    result = run("eval", "--store", store, "--run", "run-*", "--by", "version", "--format", "json", "--k", "2,4")

    value = json.loads(result.out)
    assert value["pass_at"] == 1.0
    assert "comparisons" not in value
    first, second = value["rows"]
    assert (first["version"], first["episodes"], first["scored"], first["passed"], first["open"]) == (
        "base",
        6,
        6,
        2,
        0,
    )
    assert first["pass"]["1"]["value"] == pytest.approx(1 / 3)
    assert first["pass"]["2"] == {**first["pass"]["1"], "tasks": 3}
    assert first["pass"]["4"] is None
    assert first["pass"]["1"]["interval"] == "wilson"
    assert (second["reward"]["value"], second["reward"]["interval"]) == (pytest.approx(2 / 3), "bootstrap")
    assert (second["turns"], second["prompt_tokens"], second["completion_tokens"]) == (2.0, 6.0, 2.0)
    assert (second["exact"], second["seconds"], second["tool_errors"]) == (1.0, 30.0, 0.0)
    assert second["tool_errors_by_kind"] == {"malformed": 0, "unknown": 0, "missing": 0, "ignored": 0}


def test_csv(run: Run, store: str) -> None:
    result = run("eval", "--store", store, "--by", "version,task", "--task", "t*", "--format", "csv")

    rows = list(csv.DictReader(io.StringIO(result.out)))
    assert [(row["version"], row["task"], row["pass@1"], row["exact"]) for row in rows] == [
        ("base", "three", "0.0", "1.0"),
        ("base", "two", "1.0", "1.0"),
        ("policy-v3", "three", "1.0", "1.0"),
        ("policy-v3", "two", "0.0", "1.0"),
    ]
    assert float(rows[1]["pass@1_low"]) == pytest.approx(0.3424, abs=1e-4)
    assert rows[0]["reward_low"] == "0.0"


def test_comparison_in_every_format(run: Run, store: str) -> None:
    def compared(form: str) -> str:
        result = run("eval", "--store", store, "--compare", "base", "policy-v3", "--format", form)
        assert result.code == 0
        return str(result.out)

    said = "pi, test: policy-v3 against base, 3 tasks in common: 2 wins, 1 losses, 0 ties; McNemar p = 1"
    assert said in compared("table")
    markdown = compared("markdown")
    assert said in markdown
    assert "| one | 0/2 | 2/2 | win |" in markdown
    (one,) = json.loads(compared("json"))["comparisons"]
    assert (one["first"], one["second"], one["tasks"], one["mcnemar_p"]) == ("base", "policy-v3", 3, 1.0)
    assert (one["win_count"], one["loss_count"], one["tie_count"]) == (2, 1, 0)
    assert one["difference"]["value"] == pytest.approx(1 / 3)
    tasks = list(csv.DictReader(io.StringIO(compared("csv"))))
    assert [(row["task"], row["first_passed"], row["second_passed"], row["outcome"]) for row in tasks] == [
        ("one", "0", "2", "win"),
        ("three", "0", "2", "win"),
        ("two", "2", "0", "loss"),
    ]


def test_markdown_is_a_table(run: Run, store: str, tmp_path: Path) -> None:
    file = tmp_path / "evals.md"
    result = run("eval", "--store", store, "--by", "version", "--format", "markdown", "--out", str(file))

    assert (result.code, result.out) == (0, "")
    assert "written to" in result.err
    lines = file.read_text().splitlines()
    assert lines[0].startswith("| version | episodes | tasks | pass@1 | reward |")
    assert lines[1].startswith("| --- | ---: |")
    assert {line.count("|") for line in lines[:5]} == {lines[0].count("|")}
    assert lines[2].startswith("| base | 6 | 3 | 0.333 [0.061, 0.792] |")


def test_names_do_not_break_a_markdown_table() -> None:
    assert markdown_line(("a|b", "<b>\n`c`")) == "| a\\|b | &lt;b> \\`c\\` |"


def test_pass_at_and_harness(run: Run, store: str) -> None:
    everything = json.loads(run("eval", "--store", store, "--pass-at", "0", "--by", "", "--format", "json").out)
    (row,) = everything["rows"]

    assert (row["scored"], row["passed"], row["open"]) == (12, 12, 1)
    assert run("eval", "--store", store, "--harness", "codex").code == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--by", "colour"), "--by colour: episodes have no such property; it is one of harness, version, split"),
        (("--k", "1,x"), "--k 1,x: give whole numbers, as in 1,4"),
        (("--k", "0"), "--k 0: k is 1 or more"),
        (("--run", "none"), "no episode in sqlite:"),
        (("--compare", "base", "base"), "--compare needs two versions, not base twice"),
        (("--compare", "base", "policy-v9"), "sampled by policy-v9 alone; there is: base, policy-v3"),
        (("--out", "/nowhere/at/all"), "--out /nowhere/at/all cannot be written: No such file or directory"),
    ],
)
def test_what_makes_no_sense(run: Run, store: str, arguments: tuple[str, ...], said: str) -> None:
    result = run("eval", "--store", store, *arguments)

    assert result.code == 1
    assert said in result.err
    assert result.out == ""


def test_without_a_store(run: Run, tmp_path: Path) -> None:
    result = run("eval", "--store", f"sqlite:///{tmp_path / 'none.db'}")

    assert result.code == 1
    assert "there is no database at" in result.err
