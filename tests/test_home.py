"""Where the state is kept: the environment names it, and what is secret is the owner's alone."""

import stat
import subprocess
import sys
from pathlib import Path

import pytest

from dragoman import home


def test_the_environment_names_both_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAGOMAN_HOME", str(tmp_path / "deep" / "state"))
    monkeypatch.setenv("DRAGOMAN_CACHE", str(tmp_path / "cache"))

    assert home.state_folder() == tmp_path / "deep" / "state"
    assert home.cache_folder() == tmp_path / "cache"
    assert stat.S_IMODE(home.state_folder().stat().st_mode) == 0o700
    assert home.default_store_url() == f"sqlite:///{tmp_path}/deep/state/dragoman.db"


def test_without_it_they_are_the_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DRAGOMAN_HOME", "DRAGOMAN_CACHE", "XDG_DATA_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))

    for folder in (home.state_folder(), home.cache_folder()):
        assert folder.is_relative_to(tmp_path)
        assert folder.name == "dragoman"
    assert home.state_folder() != home.cache_folder()


def test_the_operator_key_is_made_once_and_private(tmp_path: Path) -> None:
    key = home.operator_key(tmp_path)

    assert key.startswith("dgo_")
    assert len(key) == 36
    assert home.operator_key(tmp_path) == key
    assert stat.S_IMODE((tmp_path / "operator.key").stat().st_mode) == 0o600


def test_each_state_folder_has_a_key_of_its_own(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()

    assert home.operator_key(tmp_path / "one") != home.operator_key(tmp_path / "two")


def test_a_gateway_is_known_as_long_as_its_process_holds_its_note(tmp_path: Path) -> None:
    assert home.running_gateways(tmp_path) == []

    with home.announce_gateway(tmp_path, "http://127.0.0.1:8080"):
        assert home.running_gateways(tmp_path) == ["http://127.0.0.1:8080"]

    assert home.running_gateways(tmp_path) == []
    assert list((tmp_path / "gateways").iterdir()) == []


def test_a_killed_gateway_is_not_counted(tmp_path: Path) -> None:
    code = "import os, sys, pathlib; from dragoman import home; home.announce_gateway(pathlib.Path(sys.argv[1]), 'x')"
    subprocess.run([sys.executable, "-c", code + "; os.kill(os.getpid(), 9)", str(tmp_path)])

    assert len(list((tmp_path / "gateways").iterdir())) == 1
    assert home.running_gateways(tmp_path) == []
