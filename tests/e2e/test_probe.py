"""`dragoman harness probe` on two harnesses that nobody has an entry for: a good one and a bad one."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

TOYS = Path(__file__).resolve().parents[1] / "toys"
CASES = ("tools", "broken-json", "error-500", "error-429", "stream-failure", "empty")


def _probe(folder: Path, *arguments: str) -> tuple[int, dict[str, Any], str]:
    """Exit code, report, and what stood on stderr."""
    cases = [word for case in CASES for word in ("--case", case)]
    command = [sys.executable, "-m", "dragoman", "harness", "probe", "--json", "-", *cases, *arguments]
    env = {**os.environ, "DRAGOMAN_HOME": str(folder / "own"), "OPENAI_API_KEY": "sk-own-secret"}
    done = subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True)
    return done.returncode, json.loads(done.stdout) if done.stdout else {}, done.stderr


def _answers(report: dict[str, Any], mode: str | None = None) -> dict[str, str]:
    findings = [finding for finding in report["findings"] if finding["mode"] in (None, mode)]
    return {finding["about"]: finding["answer"] for finding in findings}


def test_a_good_harness_without_an_entry(tmp_path: Path) -> None:
    keep = tmp_path / "kept"
    code, report, said = _probe(
        tmp_path, "--keep", str(keep), "--", sys.executable, str(TOYS / "good_harness.py"), "{prompt}"
    )

    assert code == 0, said
    assert (report["verdict"], report["settings"], report["because"]) == ("trainable as is", [], [])
    by_url, by_proxy = _answers(report, "base-url"), _answers(report, "proxy")
    wanted = {
        "base URL": "honoured",
        "dialect": "openai_chat",
        "streams": "no",
        "tools": "run_shell(script)",
        "tool ran": "yes",
        "two calls in one reply": "both ran",
        "session id": "none",
        "exact turns": "2 of 2",
        "history": "verbatim",
        "replayed arguments": "verbatim",
        "tool-call ids": "echoed",
        "broken-json": "recovers",
        "error-500": "recovers",
        "error-429": "recovers",
        "stream-failure": "recovers",
        "empty": "ends",
    }
    assert {about: by_url.get(about) for about in wanted} == wanted
    assert (by_proxy["proxy"], by_proxy["CA"], by_proxy["exact turns"]) == ("honoured", "trusted", "2 of 2")
    assert (keep / "flows").is_file()
    assert b"own-secret" not in b"".join(file.read_bytes() for file in keep.rglob("*") if file.is_file())
    assert not (tmp_path / "own").exists()  # the state folder of whoever probes is left alone


def test_a_bad_harness_is_told_why(tmp_path: Path) -> None:
    code, report, said = _probe(tmp_path, "--", sys.executable, str(TOYS / "bad_harness.py"), "{prompt}")

    assert code == 1, said
    assert report["verdict"] == "not trainable"
    none_continues, changed, ignored = report["because"]
    assert "none of its 2 later turns continues" in none_continues
    assert "anew" in none_continues
    assert "messages.content changed" in changed
    assert ignored == "base URL ignored: it asked api.openai.com instead"
    answers = _answers(report)
    assert (answers["error-500"], answers["broken-json"]) == ("fails", "fails")


def test_a_program_that_asks_for_nothing_and_one_that_is_not_there(tmp_path: Path) -> None:
    code, report, said = _probe(tmp_path, "--", "sh", "-c", "echo nothing to do; exit 3")

    assert code == 1, said
    assert "ended with 3; the last that it said: nothing to do" in report["because"][0]
    code, report, said = _probe(tmp_path, "--", str(tmp_path / "nowhere"))
    assert (code, report) == (2, {})
    assert "cannot start it" in said
