"""The campaigns about the store, the disk and the clock, a few seconds each; ``make faults`` runs them in full."""

import os
from pathlib import Path
from typing import Any

import pytest

from bench import outages
from tests.models import tiny_model_folder


def missed(figures: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [figure for figure in figures if not figure["met"]]


async def test_postgresql_is_killed_and_hangs(
    tmp_path: Path, postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:  # `postgres` skips where there is none
    monkeypatch.setattr(outages, "HUNG_SECONDS", 1.0)
    assert missed(await outages.postgres(tmp_path, str(tiny_model_folder()), 1, 2)) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
async def test_a_disk_fills_up(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "postgresql":
        request.getfixturevalue("postgres")
    monkeypatch.setattr(outages, "FULL_SECONDS", 1.0)
    try:
        figures = await outages.disk(tmp_path, str(tiny_model_folder()), kind)
    except outages.NoSmallDisk as error:
        pytest.skip(str(error))
    assert missed(figures) == []


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
async def test_a_clock_that_jumps(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if kind == "postgresql":
        request.getfixturevalue("postgres")
    assert missed(await outages.clock(tmp_path, str(tiny_model_folder()), kind, 1, 2.0)) == []
