"""One run of a harness: what it gets, what comes back, and that nothing of it is left."""

import os
import sys
from pathlib import Path

import pytest

from dragoman.rollout.process import Launch, run


def _launch(folder: Path, script: str, *, stdin: str = "", files: tuple[tuple[Path, str], ...] = ()) -> Launch:
    (folder / "work").mkdir(exist_ok=True)
    env = {"HOME": str(folder / "home"), "PATH": os.environ["PATH"]}
    return Launch((sys.executable, "-c", script), env, files, folder / "work", stdin)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_output_and_exit_code_come_back(tmp_path: Path) -> None:
    script = "import sys; print('out:', sys.stdin.read()); print('err', file=sys.stderr); sys.exit(3)"

    result = run(_launch(tmp_path, script, stdin="prompt ✓"), timeout=60)

    assert (result.exit_code, result.stdout, result.stderr) == (3, "out: prompt ✓\n", "err\n")


def test_only_the_environment_of_the_launch_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "1")

    result = run(_launch(tmp_path, "import os; print(sorted(os.environ), os.getcwd())"), timeout=60)

    assert "'HOME'" in result.stdout
    assert "SECRET" not in result.stdout
    assert result.stdout.endswith(f"{tmp_path / 'work'}\n")


def test_files_are_written_for_the_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "home" / "deep" / "config.json"

    result = run(_launch(tmp_path, f"print(open({str(path)!r}).read())", files=((path, "{}"),)), timeout=60)

    assert result.stdout == "{}\n"
    assert path.stat().st_mode & 0o777 == 0o600


def test_the_time_limit_ends_the_run_and_says_so(tmp_path: Path) -> None:
    result = run(_launch(tmp_path, "print('begun', flush=True); import time; time.sleep(600)"), timeout=1)

    assert result.exit_code is None
    assert result.stdout in ("begun\n", "")


LEAVE_ONE_BEHIND = """
import subprocess, sys
child = subprocess.Popen(
    [sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True, stdout=None
)
print(child.pid, flush=True)
"""


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="the search for descendants needs /proc")
@pytest.mark.parametrize(
    "after",
    [pytest.param("", id="after a normal end"), pytest.param("import time; time.sleep(600)", id="at the time limit")],
)
def test_a_process_in_a_session_of_its_own_is_ended_too(tmp_path: Path, after: str) -> None:
    result = run(_launch(tmp_path, LEAVE_ONE_BEHIND + after), timeout=5)

    assert result.exit_code == (None if after else 0)
    assert not _alive(int(result.stdout))


def test_other_processes_are_left_alone(tmp_path: Path) -> None:
    run(_launch(tmp_path, "pass"), timeout=60)

    assert _alive(os.getpid())


def test_a_signal_is_a_negative_exit_code(tmp_path: Path) -> None:
    result = run(_launch(tmp_path, "import os; os.kill(os.getpid(), 15)"), timeout=60)

    assert result.exit_code == -15


def test_a_missing_working_folder_or_program_is_named(tmp_path: Path) -> None:
    missing = Launch(("/no/such/program",), {"HOME": str(tmp_path)}, (), tmp_path, "")

    with pytest.raises(FileNotFoundError, match="/no/such/program"):
        run(missing, timeout=1)
    with pytest.raises(FileNotFoundError, match=r"The working folder .*nowhere does not exist"):
        run(Launch(("true",), {"HOME": str(tmp_path)}, (), tmp_path / "nowhere", ""), timeout=1)
