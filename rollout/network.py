"""A network of a run's own: nothing but loopback, and a name server that knows no name and notes each one asked for.

Whatever in it tries to reach another address fails at once, and the kernel counts it.
"""

import fcntl
import os
import socket
import struct
import subprocess
import threading
from pathlib import Path

__all__ = ["asked_name", "isolate", "no_route"]


def isolate(folder: Path) -> list[str] | None:
    """Go into a network with nothing but loopback. Returns the list into which the names asked for are written.

    None: the system does not let us; nothing has changed.
    """
    try:
        os.unshare(os.CLONE_NEWNET | os.CLONE_NEWNS)
    except (AttributeError, OSError):
        return None
    loopback_up()
    resolver = folder / "resolv.conf"
    resolver.write_text("nameserver 127.0.0.1\noptions timeout:1 attempts:1\n")
    # else the mount would show outside, too
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    subprocess.run(["mount", "--bind", str(resolver), os.path.realpath("/etc/resolv.conf")], check=True)
    names: list[str] = []
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind(("127.0.0.1", 53))
    threading.Thread(target=answer_names, args=(server, names), name="name server", daemon=True).start()
    return names


def no_route() -> int:
    """How often something in this network wanted to send to an address that no route leads to, since it was made.

    The kernel's ``OutNoRoutes`` of IPv4 and IPv6 counts each connect and each datagram to anything but loopback.
    """
    head, values = (line.split() for line in Path("/proc/net/snmp").read_text().splitlines() if line.startswith("Ip:"))
    four = int(dict(zip(head, values, strict=True))["OutNoRoutes"])
    six = dict(line.split() for line in Path("/proc/net/snmp6").read_text().splitlines())
    return four + int(six.get("Ip6OutNoRoutes", 0))


def loopback_up() -> None:
    """What ``ip link set lo up`` does: SIOCSIFFLAGS with IFF_UP."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as some:
        fcntl.ioctl(some, 0x8914, struct.pack("16sh14x", b"lo", 0x1))


def answer_names(server: socket.socket, names: list[str]) -> None:
    """No such name, to every question."""
    while True:
        question, sender = server.recvfrom(4096)
        names.append(asked_name(question))
        # id; response, recursion available, NXDOMAIN; one question; then the question as it came
        server.sendto(question[:2] + b"\x81\x83" + question[4:6] + bytes(6) + question[12:], sender)


def asked_name(question: bytes) -> str:
    labels, at = [], 12
    while at < len(question) and (length := question[at]):
        labels.append(question[at + 1 : at + 1 + length].decode("ascii", errors="replace"))
        at += 1 + length
    return ".".join(labels)
