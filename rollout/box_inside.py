"""The supervisor of a box: started as a program by itself, outside of the box, with a plan as JSON.

Rules of this module: the standard library only, and nothing of Dragoman; it is run by ``python -I -S``. Whatever
happens, nothing that ran in the box is left when it has ended: it is the process that orphans fall to, it ends all of
them at the end and on SIGTERM, which it also gets when whoever started it dies.

With namespaces there are four processes: this one, which carries the gateway's connections; one that makes the
namespaces; the first process in them, whose end ends all others; and the program. Without, the program alone.
"""

import contextlib
import ctypes
import fcntl
import json
import os
import resource
import signal
import socket
import struct
import sys
import threading
import time
from pathlib import Path
from typing import Any

LIBC = ctypes.CDLL(None, use_errno=True)
PR_SET_PDEATHSIG, PR_CAPBSET_DROP, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 24, 36, 38
KEPT_CAPABILITIES = {0, 1, 3, 4, 5, 6, 7, 10, 31}
"""What root needs to install things: chown, dac_override, fowner, fsetid, kill, setgid, setuid, net_bind_service and
setfcap."""
MS_REC, MS_PRIVATE, MS_BIND, MS_NOSUID, MS_NODEV, MS_NOEXEC = 0x4000, 1 << 18, 0x1000, 2, 4, 8
OPEN_TREE, MOVE_MOUNT, MOUNT_SETATTR = 428, 429, 442
"""Numbers of system calls that are the same on every architecture."""
AT_FDCWD, AT_RECURSIVE, AT_EMPTY_PATH = -100, 0x8000, 0x1000
OPEN_TREE_CLONE, OPEN_TREE_CLOEXEC, MOVE_MOUNT_F_EMPTY_PATH = 1, 0x80000, 4
READ_ONLY = struct.pack("QQQQ", 1, 0, 0, 0)
NOT_STARTED = 127


def main() -> None:
    plan: dict[str, Any] = json.loads(sys.argv[1])
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if plan["parent"] != os.getppid():
        sys.exit(NOT_STARTED)  # it died before it could be noticed
    LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1)
    signal.signal(signal.SIGTERM, lambda *_: leave(128 + signal.SIGTERM))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    status = in_namespaces(plan) if plan["namespaces"] else wait_for(start_program(plan, alone=False))
    end_all()
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.signal(number, signal.SIG_DFL) if number not in (signal.SIGKILL, signal.SIGSTOP) else None
        os.kill(os.getpid(), number)
        time.sleep(5)
    os._exit(os.waitstatus_to_exitcode(status))


def leave(code: int) -> None:
    end_all()
    os._exit(code)


def end_all() -> None:
    """Kill every descendant. Orphans fall to this process, so it has no child left when there is none."""
    limit = time.monotonic() + 15
    while time.monotonic() < limit:
        for pid in descendants(os.getpid()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.005)


def descendants(root: int) -> list[int]:
    """By ``/proc``; a child is listed before its own children."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                stat = Path(f"/proc/{entry}/stat").read_text()
            except OSError:
                continue
            children.setdefault(int(stat.rpartition(")")[2].split()[1]), []).append(int(entry))
    found, at = [root], 0
    while at < len(found):
        found += children.get(found[at], [])
        at += 1
    return found[1:]


def wait_for(pid: int) -> int:
    """The wait status of one child; others that end meanwhile are reaped."""
    while True:
        ended, status = os.wait()
        if ended == pid:
            return status


def start_program(plan: dict[str, Any], *, alone: bool) -> int:
    """Fork the program with its limits. ``alone``: in namespaces, where root gives up what could undo them."""
    pid = os.fork()
    if pid:
        return pid
    try:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        for name, most in plan["limits"].items():
            kind = getattr(resource, name)
            hard = resource.getrlimit(kind)[1]
            most = most if hard == resource.RLIM_INFINITY else min(most, hard)
            resource.setrlimit(kind, (most, most))
        if alone:
            for capability in range(64):
                if capability not in KEPT_CAPABILITIES:
                    LIBC.prctl(PR_CAPBSET_DROP, capability)
        LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        os.chdir(plan["cwd"])
        command = plan["command"]
        os.execvpe(command[0], command, os.environ)
    except BaseException as error:
        os.write(2, f"{plan['command'][0]} cannot be started: {error}\n".encode())
    os._exit(NOT_STARTED)


# With namespaces


def in_namespaces(plan: dict[str, Any]) -> int:
    """Run the program in namespaces of its own; its wait status."""
    ours, theirs = socket.socketpair()
    status_read, status_write = os.pipe()
    maker = os.fork()
    if maker == 0:
        try:
            ours.close()
            make(plan, theirs, status_write)
        except BaseException as error:
            os.write(2, f"the box cannot be made: {error}\n".encode())
        os._exit(NOT_STARTED)
    theirs.close()
    os.close(status_write)
    if plan["relay"] is not None:
        message, descriptors, _, _ = socket.recv_fds(ours, 1, 1)
        if message:
            listener = socket.socket(fileno=descriptors[0])
            threading.Thread(target=relay, args=(listener, tuple(plan["relay"])), daemon=True).start()
    wait_for(maker)
    with open(status_read) as file:
        said = file.read()
    return int(said) if said else NOT_STARTED << 8


def make(plan: dict[str, Any], back: socket.socket, status: int) -> None:
    """In the process that makes the namespaces. Does not return."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    uid, gid = os.getuid(), os.getgid()
    spaces = os.CLONE_NEWNS | os.CLONE_NEWPID | os.CLONE_NEWNET | os.CLONE_NEWIPC
    if uid == 0:
        os.unshare(spaces)
    else:
        os.unshare(spaces | os.CLONE_NEWUSER)
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as some:
        fcntl.ioctl(some, 0x8914, struct.pack("16sh14x", b"lo", 0x1))  # loopback up
    if plan["relay"] is not None:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("127.0.0.1", plan["relay"][0]))
            listener.listen(128)
            socket.send_fds(back, [b"x"], [listener.fileno()])
    back.close()
    first = os.fork()
    if first:
        os.close(status)
        os.waitpid(first, 0)
        os._exit(0)
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    mounts(plan)
    result = wait_for(start_program(plan, alone=True))
    os.write(status, str(result).encode())
    os._exit(0)


def mounts(plan: dict[str, Any]) -> None:
    """A file system that can only be read but for some folders, and in which some are empty."""
    mount(None, "/", None, MS_REC | MS_PRIVATE)
    kept = [(path, os.path.isdir(path), tree(path), False) for path in plan["readable"]]
    kept += [(path, True, tree(path), True) for path in plan["writable"]]
    call(MOUNT_SETATTR, AT_FDCWD, b"/", AT_RECURSIVE, READ_ONLY, len(READ_ONLY))
    mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    limit_processes(plan["limits"].get("RLIMIT_NPROC"))
    settings = tree("/proc/sys")
    call(MOUNT_SETATTR, settings, b"", AT_RECURSIVE | AT_EMPTY_PATH, READ_ONLY, len(READ_ONLY))
    call(MOVE_MOUNT, settings, b"", AT_FDCWD, b"/proc/sys", MOVE_MOUNT_F_EMPTY_PATH)
    os.close(settings)
    for path in sorted(plan["hidden"]):
        if os.path.isdir(path):
            mount("tmpfs", path, "tmpfs", MS_NOSUID | MS_NODEV, f"size={plan['tmp_bytes']},mode=1777")
        elif os.path.exists(path):
            mount("/dev/null", path, None, MS_BIND)
    for path, folder, descriptor, writable in kept:
        os.makedirs(path if folder else os.path.dirname(path), exist_ok=True)
        if not folder and not os.path.exists(path):
            os.close(os.open(path, os.O_CREAT))  # a file is mounted on a file
        if not writable:
            call(MOUNT_SETATTR, descriptor, b"", AT_RECURSIVE | AT_EMPTY_PATH, READ_ONLY, len(READ_ONLY))
        call(MOVE_MOUNT, descriptor, b"", AT_FDCWD, os.fsencode(path), MOVE_MOUNT_F_EMPTY_PATH)
        os.close(descriptor)


def limit_processes(most: int | None) -> None:
    """Root is held to no limit of processes, but to the number of ids, which is a namespace's own since Linux 6.14."""
    release = tuple(int(part) for part in os.uname().release.split(".")[:2])
    if most is not None and release >= (6, 14):
        with contextlib.suppress(OSError):
            Path("/proc/sys/kernel/pid_max").write_text(str(max(most, 400)))


def tree(path: str) -> int:
    flags = OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_RECURSIVE
    return call(OPEN_TREE, AT_FDCWD, os.fsencode(path), flags)


def mount(what: str | None, where: str, kind: str | None, flags: int, data: str | None = None) -> None:
    texts = [None if text is None else os.fsencode(text) for text in (what, where, kind, data)]
    if LIBC.mount(texts[0], texts[1], texts[2], ctypes.c_ulong(flags), texts[3]):
        raise OSError(ctypes.get_errno(), f"mount of {where}: {os.strerror(ctypes.get_errno())}")


def call(number: int, *arguments: int | bytes) -> int:
    """A system call. Raises ``OSError``."""
    given = [ctypes.c_long(one) if isinstance(one, int) else one for one in arguments]
    result = int(LIBC.syscall(ctypes.c_long(number), *given))
    if result < 0:
        raise OSError(ctypes.get_errno(), f"system call {number}: {os.strerror(ctypes.get_errno())}")
    return result


# The way to the gateway


def relay(listener: socket.socket, gateway: tuple[int, str, int]) -> None:
    """Carry each connection made in the box to the gateway, and nowhere else."""
    while True:
        inner, _ = listener.accept()
        threading.Thread(target=carry, args=(inner, gateway[1:]), daemon=True).start()


def carry(inner: socket.socket, gateway: tuple[str, int]) -> None:
    try:
        outer = socket.create_connection(gateway, timeout=10)
    except OSError:
        inner.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # refused, as it is outside
        inner.close()
        return
    outer.settimeout(None)
    for one in (inner, outer):
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    back = threading.Thread(target=pump, args=(outer, inner), daemon=True)
    back.start()
    pump(inner, outer)
    back.join()
    inner.close()
    outer.close()


def pump(source: socket.socket, to: socket.socket) -> None:
    try:
        while data := source.recv(65536):
            to.sendall(data)
        to.shutdown(socket.SHUT_WR)
    except OSError:
        for one in (source, to):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


if __name__ == "__main__":
    main()
