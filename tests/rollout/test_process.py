"""One run of a harness: what it gets, what comes back, and that nothing of it is left."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dragoman.rollout.process import Launch, Stream, run


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
    assert {folder.stat().st_mode & 0o777 for folder in (path.parent, path.parent.parent)} == {0o700}


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


def test_output_is_handed_on_while_it_is_printed(tmp_path: Path) -> None:
    seen: list[tuple[Stream, bytes]] = []
    flag = tmp_path / "seen"

    def on_output(stream: Stream, data: bytes) -> None:
        seen.append((stream, data))
        if b"begun" in data:
            flag.touch()  # the program ends only when its first words have come here

    script = f"""
import os, sys, time
print("begun", flush=True)
while not os.path.exists({str(flag)!r}):
    time.sleep(0.01)
print("last words", file=sys.stderr, end="")
"""
    result = run(_launch(tmp_path, script), timeout=60, on_output=on_output)

    assert seen == [("stdout", b"begun\n"), ("stderr", b"last words")]
    assert (result.exit_code, result.stdout, result.stderr) == (0, "begun\n", "last words")


def test_a_program_that_prints_without_end_meets_the_limit(tmp_path: Path) -> None:
    sizes: list[int] = []
    script = "import sys\nwhile True: sys.stdout.write('x' * 65536)"

    result = run(_launch(tmp_path, script), timeout=1, on_output=lambda stream, data: sizes.append(len(data)))

    assert result.exit_code is None
    assert sum(sizes) >= len(result.stdout) - 100  # of long output the result has the beginning and the end


def test_an_error_of_the_listener_ends_the_run_and_is_not_asked_again(tmp_path: Path) -> None:
    calls: list[bytes] = []

    def on_output(stream: Stream, data: bytes) -> None:
        calls.append(data)
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        run(
            _launch(tmp_path, "import os, time; print(os.getpid(), flush=True); time.sleep(600)"),
            timeout=60,
            on_output=on_output,
        )

    assert len(calls) == 1
    assert not _alive(int(calls[0]))


def test_the_callers_own_input_is_handed_through(tmp_path: Path) -> None:
    code = f"""
import sys, pathlib
from dragoman.rollout.process import Launch, Stream, run
folder = pathlib.Path({str(tmp_path)!r})
launch = Launch((sys.executable, "-c", "print(input())"), {{"HOME": str(folder / 'home')}}, (), folder, None)
print(run(launch, timeout=60).stdout)
"""
    done = subprocess.run([sys.executable, "-c", code], input="piped\n", capture_output=True, text=True)

    assert done.stdout == "piped\n\n"
