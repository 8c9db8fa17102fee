"""Where Dragoman keeps its state on this machine, and the default addresses.

Rules of this module: standard library and platformdirs only, and no import from the rest of Dragoman,
so that every package may use it.
"""

import fcntl
import os
import secrets
from pathlib import Path
from typing import TextIO

import platformdirs

DEFAULT_GATEWAY = "http://127.0.0.1:8080"
DEFAULT_ENGINE = "http://127.0.0.1:8000"


def state_folder() -> Path:
    """The state folder (database, operator key, certificates), created owner-only if missing.

    ``DRAGOMAN_HOME`` names it; otherwise it is the platform's data folder for one user.
    """
    named = os.environ.get("DRAGOMAN_HOME")
    folder = Path(named).expanduser() if named else Path(platformdirs.user_data_dir("dragoman", appauthor=False))
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder.resolve()


def cache_folder() -> Path:
    """The cache folder (harness installs, models), shared by all checkouts; ``DRAGOMAN_CACHE`` names it."""
    named = os.environ.get("DRAGOMAN_CACHE")
    folder = Path(named).expanduser() if named else Path(platformdirs.user_cache_dir("dragoman", appauthor=False))
    folder.mkdir(parents=True, exist_ok=True)
    return folder.resolve()


def default_store_url() -> str:
    """SQLAlchemy URL of the default store: ``dragoman.db`` in the state folder."""
    return f"sqlite:///{state_folder() / 'dragoman.db'}"


def operator_key(folder: Path) -> str:
    """The operator key of a state folder (opens episodes, sets rewards); made on first use, mode 0600."""
    path = folder / "operator.key"
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return path.read_text().strip()
    key = f"dgo_{secrets.token_hex(16)}"
    with os.fdopen(descriptor, "w") as file:
        file.write(key + "\n")
    return key


def announce_gateway(folder: Path, address: str) -> TextIO:
    """Note in a state folder that this process serves a gateway at ``address``.

    It holds as long as the returned file is open: the kernel lets go of the file's lock however the process ends.
    """
    path = folder / "gateways" / str(os.getpid())
    path.parent.mkdir(exist_ok=True, mode=0o700)
    new = folder / f".gateway-{os.getpid()}"
    file = new.open("w")
    fcntl.flock(file, fcntl.LOCK_EX)
    file.write(address + "\n")
    file.flush()
    new.replace(path)  # so it is never there without its lock
    return file


def running_gateways(folder: Path) -> list[str]:
    """The addresses of the gateways that run with this state folder; notes of ended ones are removed."""
    addresses = []
    for path in sorted((folder / "gateways").glob("*")):
        with path.open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                addresses.append(file.read().strip())
            else:
                path.unlink(missing_ok=True)
    return addresses
