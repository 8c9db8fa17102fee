"""The parts of a Codex session that need no Codex: what is compared, and the relay that can be cut."""

import socket
import threading
from pathlib import Path

from scripts.codex_row import plain, relay, steps
from scripts.harness_rows import Row

ROW = Row("codex", "builtin", "base-url", "session")


def test_a_prompt_is_compared_without_what_differs_from_run_to_run() -> None:
    prompt = (
        "in /tmp/one/work as 01a2319a-9a55-7e30-885a-e6bdc3ff515e: call_0123456789abcdefghij_0 Wall time 0.1 seconds"
    )
    other = (
        "in /tmp/two/work as 01a231a2-8096-7852-9174-9d59bda9a55e: call_abcdefghij0123456789_0 Wall time 2.5 seconds"
    )
    assert plain(prompt, Path("/tmp/one")) == plain(other, Path("/tmp/two"))
    assert "FOLDER/work" in plain(prompt, Path("/tmp/one"))


def test_only_the_step_for_a_summary_and_the_sub_agents_are_without_the_mark() -> None:
    said = steps(ROW, "websocket")
    assert [("match" in step, "unless" in step) for step in said] == [(True, False)] + [(False, True)] * 3 + [
        (True, False)
    ] * 10
    assert len(steps(ROW, "killed")) == len(steps(ROW, "cut")) == 2


def test_a_relay_carries_bytes_and_cuts_both_ends() -> None:
    server = socket.create_server(("127.0.0.1", 0))
    got: list[bytes] = []

    def echo() -> None:
        far, _ = server.accept()
        while data := far.recv(10):
            got.append(data)
            far.sendall(data)
        got.append(b"")

    thread = threading.Thread(target=echo)
    thread.start()
    with relay() as (address, connect_to, cut):
        connect_to(f"http://127.0.0.1:{server.getsockname()[1]}")
        host, _, port = address.removeprefix("http://").partition(":")
        with socket.create_connection((host, int(port))) as near:
            near.sendall(b"hello")
            assert near.recv(10) == b"hello"
            cut()
            assert near.recv(10) == b""
    thread.join()
    server.close()
    assert got == [b"hello", b""]
