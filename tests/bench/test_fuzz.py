"""A short run of the fuzzer: every mutated request gets a proper answer, and a bug in the gateway is found."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from bench.fuzz import Report, figures, fuzz, golden_samples
from dragoman.addons import respond
from dragoman.addons.engine import Engine
from dragoman.addons.providers.google import GOOGLE
from dragoman.addons.recorder import Recorder
from dragoman.store.records import CallOutcome
from tests.models import tiny_model_folder

Patch = pytest.MonkeyPatch


def short(tmp_path: Path, *, count: int = 200) -> Report:
    return asyncio.run(fuzz(tiny_model_folder(), tmp_path, golden_samples(), seed=1, count=count))


def missed(report: Report) -> set[str]:
    return {figure["name"] for figure in figures(report) if not figure["met"]}


def test_every_mutated_request_gets_a_proper_answer(tmp_path: Path) -> None:
    report = short(tmp_path, count=2000)
    assert report.defects == []
    assert report.unbalanced == []
    assert report.unexpected == 0
    assert report.asked == sum(report.statuses.values()) == 2000
    assert report.calls > 1000
    assert {200, 400, 401, 404, 413, 499} <= set(report.statuses)
    assert len(report.memory) == 10
    assert missed(report) == set()


def test_a_bug_in_a_parser_is_found(tmp_path: Path, monkeypatch: Patch) -> None:
    def parse_request(*_: Any) -> None:
        raise KeyError("contents")

    monkeypatch.setattr(type(GOOGLE), "parse_request", parse_request)
    report = short(tmp_path)
    assert report.unexpected > 10
    assert report.unbalanced == []
    assert {"fuzz_5xx", "fuzz_unexpected_errors", "fuzz_improper_answers"} <= missed(report)


def test_an_error_that_leaves_the_app_is_found(tmp_path: Path, monkeypatch: Patch) -> None:
    def error_response(*_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(respond, "error_response", error_response)
    assert any("the app raised ZeroDivisionError" in defect for defect in short(tmp_path).defects)


def test_an_outcome_that_is_not_written_is_found(tmp_path: Path, monkeypatch: Patch) -> None:
    finish = Recorder.finish

    def forgets(self: Recorder, outcome: CallOutcome) -> asyncio.Future[None]:
        if outcome.status != "refused":
            return finish(self, outcome)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done

    monkeypatch.setattr(Recorder, "finish", forgets)
    report = short(tmp_path)
    assert missed(report) == {"fuzz_unbalanced"}
    assert any("no outcome" in problem for problem in report.unbalanced)
    assert any("the store says None" in problem for problem in report.unbalanced)


def test_an_engine_error_is_found(tmp_path: Path, monkeypatch: Patch) -> None:
    # what vLLM would refuse is an AssertionError in the engine that stands in for it
    monkeypatch.setattr("bench.instant_engine.InstantEngine.generate", Engine.generate)
    assert "fuzz_5xx" in missed(short(tmp_path))
