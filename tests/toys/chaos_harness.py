"""A harness that behaves as it is told to: well, badly, or not at all. Standard library only.

The behaviour is the first word of its prompt, which it reads from its standard input. Its argument, if any, is how many
seconds it hangs: a number by which a test knows its own processes.
"""

import json
import os
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

SECONDS = int(sys.argv[1]) if sys.argv[1:] else 7531
SLEEPER = [sys.executable, "-c", f"import time; time.sleep({SECONDS})"]


def ask(tries: int = 1) -> str:
    """One call. Raises ``OSError``."""
    body = {"model": "any", "messages": [{"role": "user", "content": "go on"}]}
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps(body).encode(),
        {"authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "content-type": "application/json"},
    )
    for left in reversed(range(tries)):
        try:
            with urllib.request.urlopen(request, timeout=60) as reply:
                return str(json.load(reply)["choices"][0]["message"]["content"])
        except OSError:
            if not left:
                raise
            time.sleep(0.5)
    raise AssertionError


def good() -> None:
    print(ask())
    Path("hello.txt").write_text("hello\n")


def stubborn() -> None:
    """Tries again for as long as a person would."""
    print(ask(tries=60))
    Path("hello.txt").write_text("hello\n")


def many() -> None:
    """Calls for some seconds, so that something can happen meanwhile."""
    for _ in range(20):
        ask()
        time.sleep(0.2)
    Path("hello.txt").write_text("hello\n")


def nothing() -> None:
    pass


def crash() -> None:
    ask()
    sys.exit(7)


def hang() -> None:
    ask()
    time.sleep(SECONDS)


def daemons() -> None:
    """Leaves one process that has forgotten everything about where it came from, and one that ignores signals."""
    subprocess.Popen(SLEEPER, env={}, start_new_session=True, stdout=subprocess.DEVNULL)
    stubborn_one = f"import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep({SECONDS})"
    subprocess.Popen([sys.executable, "-c", stubborn_one], start_new_session=True)
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        while True:  # edits the work for ever
            Path("hello.new").write_text("hello\n")
            os.replace("hello.new", "hello.txt")  # whenever it is ended, the file is whole
            time.sleep(0.01)
    good()


def fill() -> None:
    ask()
    chunk = bytes(1 << 20)
    for number in range(1 << 20):
        Path(f"big-{number}").write_bytes(chunk * 8)


def big_file() -> None:
    ask()
    chunk = bytes(1 << 20)
    with open("big", "wb") as file:
        while True:
            file.write(chunk)


def loud() -> None:
    ask()
    line = "x" * (1 << 20)
    for _ in range(1024):
        sys.stdout.write(line)


def fork() -> None:
    """As many processes as it is let have."""
    ask()
    while True:
        try:
            os.fork()
        except OSError:
            time.sleep(SECONDS)


if __name__ == "__main__":
    globals()[sys.stdin.read().split()[0]]()
