"""A network of a run's own: the name server's answers, and that whatever wants to leave is counted."""

import json
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from dragoman.rollout.network import asked_name


def test_the_name_in_a_question() -> None:
    question = struct.pack(">6H", 7, 0x100, 1, 0, 0, 0) + b"\x03api\x06github\x03com\x00" + struct.pack(">2H", 1, 1)

    assert asked_name(question) == "api.github.com"
    assert asked_name(question[:12]) == ""


TRY = """
import json, pathlib, socket, sys
from dragoman.rollout.network import isolate, no_route
names = isolate(pathlib.Path(sys.argv[1]))
if names is None:
    sys.exit(77)
counts = [no_route()]
def attempt(family, kind, address):
    with socket.socket(family, kind) as one:
        try:
            one.connect(address)
        except OSError as error:
            counts.append((no_route(), error.strerror))
attempt(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 9))
attempt(socket.AF_INET, socket.SOCK_STREAM, ("192.0.2.1", 443))
attempt(socket.AF_INET, socket.SOCK_DGRAM, ("192.0.2.1", 53))
attempt(socket.AF_INET6, socket.SOCK_STREAM, ("2001:db8::1", 443))
try:
    socket.getaddrinfo("somewhere.example", 443)
except OSError:
    pass
print(json.dumps([counts, sorted(set(names))]))
"""


def test_whatever_wants_to_leave_is_counted_and_loopback_is_not(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", TRY, str(tmp_path)], capture_output=True, text=True)
    if done.returncode == 77:
        pytest.skip("the system does not let us make a network namespace")

    assert done.returncode == 0, done.stderr
    counts, names = json.loads(done.stdout)
    assert counts == [
        0,
        [0, "Connection refused"],
        [1, "Network is unreachable"],
        [2, "Network is unreachable"],
        [3, "Network is unreachable"],
    ]
    assert names == ["somewhere.example"]
