"""A box: what a program in it may see, write and reach, and that nothing of it is left."""

import http.server
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from dragoman.rollout.box import Box, Isolation, Resources, boxed, find_isolation, why_no_namespaces
from dragoman.rollout.process import HarnessResult, Launch, run

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(params=["namespaces", "limits"])
def box(request: pytest.FixtureRequest, tmp_path: Path) -> Box:
    try:
        isolation: Isolation = find_isolation(request.param)
    except ValueError as error:
        pytest.skip(str(error))
    if isolation == "none":
        pytest.skip("needs Linux")
    (tmp_path / "work").mkdir()
    return Box(isolation, writable=(tmp_path / "work",))


def _launch(box: Box, script: str) -> Launch:
    (work,) = box.writable
    env = {"PATH": os.environ["PATH"], "HOME": str(work)}
    return boxed(Launch(("/bin/bash", "-c", script), env, (), work, ""), box)


def _run(box: Box, script: str, timeout: float = 60) -> HarnessResult:
    return run(_launch(box, script), timeout=timeout)


def _running(word: str) -> list[str]:
    done = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True)
    return [line for line in done.stdout.splitlines() if line.strip() == word]


def test_exit_codes_signals_and_output_come_through(box: Box) -> None:
    assert _run(box, "echo out; echo err >&2; exit 3").exit_code == 3
    result = _run(box, "echo out; echo err >&2")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "out\n", "err\n")
    assert _run(box, "kill -TERM $$").exit_code == -signal.SIGTERM
    assert _run(box, "kill -KILL $$").exit_code == -signal.SIGKILL
    assert _run(replace(box, writable=box.writable), "exec /no/such/program").exit_code == 127


@pytest.mark.parametrize("end", ["exit 0", "sleep 7000"])
def test_orphans_that_forgot_where_they_came_from_are_ended(box: Box, end: str) -> None:
    script = f"(env -i setsid sleep 7117 &) ; env -i setsid nohup sleep 7118 >/dev/null 2>&1 & {end}"
    _run(box, script, timeout=2)
    assert _running("sleep 7117") == _running("sleep 7118") == []


def test_all_of_it_ends_with_the_process_that_made_it(box: Box, tmp_path: Path) -> None:
    program = (
        "import sys, pathlib; sys.path.insert(0, sys.argv[1])\n"
        "from dragoman.rollout.box import Box, boxed\nfrom dragoman.rollout.process import Launch, run\n"
        "work = pathlib.Path(sys.argv[2])\n"
        "launch = Launch(('/bin/bash', '-c', '(env -i setsid sleep 7119 &) ; echo begun > begun; sleep 7119'), "
        "{'PATH': '/usr/bin:/bin', 'HOME': str(work)}, (), work, '')\n"
        "run(boxed(launch, Box(sys.argv[3], writable=(work,))), timeout=600)\n"
    )
    (work,) = box.writable
    command = [sys.executable, "-c", program, str(ROOT / "src"), str(work), box.isolation]
    runner = subprocess.Popen(command)
    limit = time.monotonic() + 60
    while not (work / "begun").exists():
        assert time.monotonic() < limit
        time.sleep(0.05)
    runner.kill()
    runner.wait()
    limit = time.monotonic() + 20
    while _running("sleep 7119"):
        assert time.monotonic() < limit, "it is still there"
        time.sleep(0.05)


def test_limits_hold(box: Box) -> None:
    limited = replace(box, resources=Resources(file_bytes=1000, open_files=20))
    assert _run(limited, "head -c 2000 /dev/zero > big").exit_code != 0
    (work,) = box.writable
    assert (work / "big").stat().st_size == 1000
    assert _run(limited, "ulimit -n; ulimit -c").stdout == "20\n0\n"
    memory = replace(box, resources=Resources(memory_bytes=200_000_000))
    assert _run(memory, f"{sys.executable} -c 'bytearray(400_000_000)'").exit_code == 1


def test_nobody_gains_privileges(box: Box) -> None:
    assert "NoNewPrivs:\t1" in _run(box, "cat /proc/self/status").stdout


@pytest.fixture
def closed(box: Box) -> Box:
    if box.isolation != "namespaces":
        pytest.skip("needs namespaces")
    return box


def test_only_what_is_named_can_be_written(closed: Box, tmp_path: Path) -> None:
    outside = ROOT / "rollout" / "box-test-was-here"
    result = _run(closed, f"touch here /tmp/there; touch {outside} || ls /tmp")
    assert "Read-only file system" in result.stderr
    assert not outside.exists()
    (work,) = closed.writable
    assert (work / "here").exists()
    assert not Path("/tmp/there").exists()
    assert "there" in result.stdout


def test_hidden_places_are_empty(closed: Box, tmp_path: Path) -> None:
    secrets = ROOT / ".run"
    secrets.mkdir(exist_ok=True)
    folder, file = secrets / "box-test", ROOT / "README.md"
    folder.mkdir(exist_ok=True)
    (folder / "key").write_text("k")
    hidden = replace(closed, hidden=(folder, file))
    assert _run(hidden, f"ls -A {folder}; cat {file}; umount {folder} 2>/dev/null; ls -A {folder}").stdout == ""
    kept = replace(hidden, readable=(folder,))
    assert _run(kept, f"cat {folder}/key; touch {folder}/x").stdout == "k"
    assert not (folder / "x").exists()


def test_sockets_of_servers_are_out_of_reach(closed: Box) -> None:
    """They are files, and a network namespace does not stop them."""
    path = Path(f"/run/dragoman-test-{os.getpid()}.sock")
    try:
        server = socket.socket(socket.AF_UNIX)
        server.bind(str(path))
    except OSError as error:
        pytest.skip(str(error))
    try:
        assert _run(closed, f"test -e {path}").exit_code == 1
    finally:
        server.close()
        path.unlink()


def test_the_gateway_is_all_that_can_be_reached(closed: Box) -> None:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[::-1])

        def log_message(self, format: str, *args: object) -> None:
            pass

    servers = [http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) for _ in range(2)]
    for server in servers:
        threading.Thread(target=server.serve_forever, daemon=True).start()
    gateway, other = (server.server_address[1] for server in servers)
    script = (
        "import socket, sys, urllib.request\n"
        "body = bytes(range(256)) * 4096\n"
        f"reply = urllib.request.urlopen('http://127.0.0.1:{gateway}/', body).read()\n"
        "print(reply == body[::-1])\n"
        f"for address in (('127.0.0.1', {other}), ('192.0.2.1', 80)):\n"
        "    try:\n        socket.create_connection(address, 5)\n    except OSError as error: print(error.strerror)\n"
        "try:\n    socket.getaddrinfo('example.org', 80)\nexcept OSError: print('no names')\n"
    )
    (work,) = closed.writable
    (work / "script.py").write_text(script)
    result = _run(replace(closed, gateway=("127.0.0.1", int(gateway))), f"{sys.executable} script.py")
    for server in servers:
        server.shutdown()
        server.server_close()
    assert result.stdout == "True\nConnection refused\nNetwork is unreachable\nno names\n", result.stderr


def test_a_gateway_that_is_away_is_refused_as_it_is_outside(closed: Box) -> None:
    from dragoman.cli.processes import free_port

    port = free_port()
    script = f"import urllib.request\nurllib.request.urlopen('http://127.0.0.1:{port}/')"
    (work,) = closed.writable
    (work / "script.py").write_text(script)
    assert "reset by peer" in _run(replace(closed, gateway=("127.0.0.1", port)), f"{sys.executable} script.py").stderr


def test_processes_outside_cannot_be_seen_or_ended(closed: Box) -> None:
    result = _run(
        closed, f"ps -e | wc -l; kill -9 {os.getpid()}; mount -t tmpfs none /mnt; sysctl -w kernel.core_pattern=x"
    )
    assert int(result.stdout.split()[0]) < 10
    assert "No such process" in result.stderr
    assert "mount" in result.stderr


def test_what_is_not_there_is_said() -> None:
    assert find_isolation("none") == "none"
    if why_no_namespaces() is None:
        assert find_isolation("auto") == "namespaces"


def test_a_program_that_the_command_names_is_there_though_it_lies_in_a_temporary_folder(
    closed: Box, tmp_path: Path
) -> None:
    program, beside, hidden = tmp_path / "agent.sh", tmp_path / "beside.txt", tmp_path / "hidden"
    program.write_text("cat $1; ls " + str(tmp_path))
    beside.write_text("secret")
    hidden.mkdir()
    (hidden / "answer").write_text("secret")
    box = replace(closed, hidden=(*closed.hidden, hidden))
    (work,) = box.writable
    command = ("/bin/bash", str(program), str(hidden / "answer"))
    result = run(boxed(Launch(command, {"PATH": os.environ["PATH"], "HOME": str(work)}, (), work, ""), box), timeout=60)
    assert "secret" not in result.stdout
    assert sorted(result.stdout.split()) == ["agent.sh", "work"]
