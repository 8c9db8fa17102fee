"""``dragoman policy``: what is listed, what a folder of weights is, and a push that no gateway takes up."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dragoman.cli.output import Failure
from dragoman.cli.policy import folder_kind
from dragoman.store import policies
from dragoman.store.database import Database


@pytest.fixture
def url(state: Path) -> str:
    return f"sqlite:///{state / 'dragoman.db'}"


def filled(url: str) -> None:
    database = Database.open(url)
    with database.session() as session:
        for number, kind in ((1, "lora"), (2, "full")):
            policies.add_policy(
                session,
                kind=kind,  # type: ignore[arg-type]
                path=Path(f"/runs/step-{number}"),
                parent=None,
                run="one",
                step=number,
                metrics={"reward": 0.25},
                now=1.0,
            )
        policies.claim_load(session, 2, "http://engine:8000", now=2.0)
        policies.finish_load(session, 2, "http://engine:8000", "failed", reason="no [room]", now=3.0)
    database.close()


def test_the_newest_comes_first_with_what_became_of_it(run: Callable[..., Any], url: str) -> None:
    filled(url)
    result = run("policy", "list")
    lines = result.out.splitlines()
    assert lines[0].startswith("policy-v2  full  ")
    assert lines[0].endswith("run one step 2  /runs/step-2  reward 0.25")
    assert lines[1] == "    http://engine:8000  failed: no [room]"
    assert lines[2].startswith("policy-v1  lora")
    assert lines[3] == "    no gateway has taken it up"
    rows = [json.loads(line) for line in run("policy", "list", "--json").out.splitlines()]
    assert [(row["version"], [load["status"] for load in row["loads"]]) for row in rows] == [
        ("policy-v2", ["failed"]),
        ("policy-v1", []),
    ]


def test_a_store_without_policies_says_so(run: Callable[..., Any], url: str) -> None:
    Database.open(url).close()
    result = run("policy", "list")
    assert (result.code, result.out) == (0, "")
    assert "base" in result.err


@pytest.mark.parametrize(("file", "kind"), [("adapter_config.json", "lora"), ("config.json", "full")])
def test_what_a_folder_holds(tmp_path: Path, file: str, kind: str) -> None:
    (tmp_path / file).write_text("{}")
    assert folder_kind(tmp_path) == kind


def test_a_folder_without_weights_is_refused(run: Callable[..., Any], tmp_path: Path, url: str) -> None:
    with pytest.raises(Failure, match="no folder of weights"):
        folder_kind(tmp_path)
    Database.open(url).close()
    result = run("policy", "push", str(tmp_path))
    assert result.code == 1
    assert "no folder of weights" in result.err
    assert run("policy", "list").out == ""


def test_a_push_that_nobody_takes_up_is_a_failure_that_names_the_remedy(
    run: Callable[..., Any], tmp_path: Path, url: str
) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    result = run("policy", "push", str(tmp_path), "--wait", "0")
    assert result.code == 1
    assert "policy-v1 is published: lora" in result.err
    assert "does `dragoman serve` run on this store?" in result.err
