"""What ``dragoman doctor`` looks at outside the engine: the store, the gateway, the CA, the harnesses, this machine.

Rules of this package's checks: a check returns what it found and never prints or raises for a finding. A failed check
says what is wrong and what to do about it.
"""

import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dragoman.addons.tokens import TokenCodec
    from dragoman.gateway_client import GatewayStatus

_GATEWAY_ONLY = "not looked at: run doctor in the gateway's environment (Python 3.12)"


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    ok: bool | None
    """``None``: a remark that is neither right nor wrong."""
    found: str
    remedy: str = ""
    """What to do; only for a check that failed."""


def good(name: str, found: str) -> Check:
    return Check(name, True, found)


def bad(name: str, found: str, remedy: str) -> Check:
    return Check(name, False, found, remedy)


def remark(name: str, found: str) -> Check:
    return Check(name, None, found)


def check_store(url: str) -> Check:
    """Whether the database can be opened, brought to this version's schema, and written."""
    from sqlalchemy import text

    from dragoman.store.database import Database
    from dragoman.store.errors import StoreError

    try:
        database = Database.open(url)
        try:
            with database.session() as session:
                # A real write that changes nothing.
                session.execute(text("UPDATE alembic_version SET version_num = version_num"))
            return good("store", f"{database.url} is writable")
        finally:
            database.close()
    except StoreError as error:
        return bad("store", str(error), "see the message; --store names another database, DRAGOMAN_HOME another folder")


def check_template(model: str, renderer: str) -> Check:
    """Which renderer turns messages into tokens, and whether the model's template shows tools to the model."""
    if sys.version_info < (3, 12):
        return remark("template", _GATEWAY_ONLY)
    try:
        codec = _codec(model, renderer)
    except (OSError, ValueError) as error:
        return bad("template", f"the tokenizer of {model} cannot be loaded: {error}", "name its folder with --model")
    if codec.template_has_tools:
        return good("template", f"renderer {codec.renderer_name} for {model}; tools are shown to the model")
    return bad(
        "template",
        f"the chat template of {model} ignores tools (renderer {codec.renderer_name}): the model would never see one",
        "put a template that renders `tools` in the folder's chat_template.jinja, or choose a --renderer",
    )


def check_bridges(model: str, renderer: str) -> Check:
    """Which kinds of new message cannot follow a reply token by token, so that such a call starts a new branch."""
    if sys.version_info < (3, 12):
        return remark("bridges", _GATEWAY_ONLY)
    from dragoman.addons.bridge import probe

    try:
        found = probe(_codec(model, renderer), "template")
    except (OSError, ValueError):
        return remark("bridges", "not looked at: the tokenizer cannot be loaded")
    inexact = [f"{kind} ({outcome})" for kind, outcome in found.items() if outcome != "exact"]
    if not inexact:
        return good("bridges", f"all {len(found)} kinds of turn continue the sampled tokens exactly")
    return remark("bridges", f"rendered in full, as a new branch: {', '.join(inexact)}; all others continue exactly")


@cache
def _codec(model: str, renderer: str) -> "TokenCodec":
    """Raises ``OSError`` or ``ValueError`` when there is no tokenizer that can be used."""
    from dragoman.addons.tokens import TokenCodec

    return TokenCodec.load(model, renderer=renderer)


def check_gateway(address: str, key: str, *, wanted: bool) -> "tuple[Check, GatewayStatus | None]":
    """Whether a gateway answers and takes our key, and what it says of itself.

    ``wanted``: the user named the gateway, so its absence is a failure.
    """
    from dragoman.gateway_client import GatewayClient, GatewayError

    with GatewayClient(address, key, timeout=10) as client:
        try:
            status = client.status()
        except GatewayError as error:
            if error.code is None and not wanted:
                return remark("gateway", f"none answers at {address}; `dragoman serve` starts one"), None
            return bad("gateway", str(error), "see the message"), None
    waiting = f", {status.outbox_depth} records wait for the store" if status.outbox_depth else ""
    does = f"engine {status.engine}" if status.observes is None else f"only looks on, calls go to {status.observes}"
    return good("gateway", f"{address}, version {status.version}, {does}{waiting}"), status


def check_recording(status: "GatewayStatus") -> list[Check]:
    """Whether the gateway can make calls durable and its store takes them. Empty: nothing to say."""
    if status.recording_error is None:
        return []
    return [bad("recording", status.recording_error, "see the message; what waits is stored as soon as that is gone")]


OUTBOX_SECONDS = 60.0
"""Age of the oldest waiting record from which something is wrong."""


def check_outbox(path: Path, now: float) -> list[Check]:
    """What waits for a PostgreSQL store, and what it refused. Empty: there is no outbox."""
    from dragoman.addons.outbox import look
    from dragoman.cli.outbox import waiting
    from dragoman.store.errors import StoreError

    if not path.exists():
        return []
    try:
        state, aside, store = look(path)
    except StoreError as error:
        return [bad("outbox", str(error), "see the message")]
    found = f"{path}: {waiting(state, now)}, for {store}"
    if aside:
        why = f"; {len(aside)} were set aside, the first of call {aside[0].call_id}: {aside[0].reason}"
        return [bad("outbox", found + why, "`dragoman outbox` lists them and says how to try them again")]
    if state.oldest_at is not None and now - state.oldest_at > OUTBOX_SECONDS:
        remedy = "see why the store takes none (`dragoman doctor --store URL`); without a gateway, `dragoman outbox -h`"
        return [bad("outbox", found, remedy)]
    return [good("outbox", found)]


def check_trust(environment: Mapping[str, str], certificates: Path) -> Check:
    """Whether programs started with ``environment`` trust the CA in the folder ``certificates``.

    Where ``environment`` names no proxy, a harness will get its variables from ``dragoman episode open``, so those
    count on top of it.
    """
    if sys.version_info < (3, 12):
        return remark("CA trust", _GATEWAY_ONLY)
    from dragoman.certs.authority import AuthorityError, ensure_authority
    from dragoman.certs.trust import check_trusted, trust_environment

    try:
        certificate = ensure_authority(certificates).cert_path
    except AuthorityError as error:
        return bad("CA trust", str(error), "see the message; DRAGOMAN_HOME names another state folder")
    by_hand = bool(environment.get("HTTPS_PROXY") or environment.get("https_proxy"))
    seen = environment if by_hand else {**environment, **trust_environment(certificates)}
    verdict = check_trusted(seen, certificate)
    if verdict.ok:
        where = "this shell" if by_hand else "the environment that `dragoman episode open` gives"
        return good("CA trust", f"{where} trusts {certificate}")
    reasons = "; ".join(entry.reason for entry in verdict.untrusted)
    return bad(
        "CA trust",
        f"HTTPS_PROXY is set in this shell, but not every program it starts trusts {certificate}: {reasons}",
        'run `eval "$(dragoman episode open)"`, which sets these variables too',
    )


def check_gateway_ca(address: str, certificates: Path) -> Check:
    """Whether the gateway that runs at ``address`` signs with the CA in ``certificates``, by a real TLS handshake."""
    import socket
    import ssl
    from urllib.parse import urlsplit

    from dragoman.certs.trust import CERTIFICATE_FILE

    parts = urlsplit(address)
    where = (parts.hostname or "127.0.0.1", parts.port or 80)
    trusting = ssl.create_default_context(cafile=certificates / CERTIFICATE_FILE)
    try:
        # As through HTTPS_PROXY, the gateway shows a certificate for any host that a client names.
        with socket.create_connection(where, timeout=10) as connection:
            trusting.wrap_socket(connection, server_hostname="api.anthropic.com").close()
    except ssl.SSLCertVerificationError as error:
        return bad(
            "gateway CA",
            f"{address} signs with another CA than {certificates / CERTIFICATE_FILE} ({error.verify_message})",
            "give both the same DRAGOMAN_HOME, or copy the gateway's certs/ here and start the harness again",
        )
    except OSError as error:
        return bad("gateway CA", f"no TLS handshake with {address}: {error}", "look at the gateway's log")
    return good("gateway CA", f"{address} signs with {certificates / CERTIFICATE_FILE}")


def check_harness(name: str, *, wanted: bool) -> Check:
    """Whether the harness is there: the version that Dragoman installs and runs, else one on PATH.

    ``wanted``: the user named it, so its absence is a failure.
    """
    from dragoman.rollout.harnesses import find_harness
    from dragoman.rollout.install import install_folder, installed

    try:
        harness = find_harness(name)
    except ValueError as error:
        return bad(f"harness {name}", str(error), "name one of these")
    if folder := installed(harness):
        return good(f"harness {name}", f"{harness.version} in {folder}")
    if program := shutil.which(name):
        return good(f"harness {name}", f"{program} (not the version {harness.version} that rollouts install)")
    remedy = f"run `dragoman harness install {name}`"
    if not wanted:
        return remark(f"harness {name}", f"not installed; {remedy}")
    return bad(f"harness {name}", f"not installed in {install_folder(harness)} and no `{name}` on PATH", remedy)


def check_machine() -> list[Check]:
    """Python, the compiler that vLLM on CPU needs at run time, and room on the disk."""
    from dragoman.home import state_folder

    version = ".".join(str(part) for part in sys.version_info[:3])
    enough = sys.version_info >= (3, 12)
    checks = [remark("Python", f"{version}" if enough else f"{version}: the gateway needs 3.12, the trainer does not")]
    compiler = shutil.which("g++")
    checks.append(remark("g++", compiler or "not found; vLLM on CPU compiles one kernel with it at run time"))
    folder = state_folder()
    free = shutil.disk_usage(folder).free / 1e9
    checks.append(
        remark("disk", f"{free:.0f} GB free for {folder}")
        if free > 1
        else bad("disk", f"only {free:.2f} GB free for {folder}", "make room, or move the folder with DRAGOMAN_HOME")
    )
    return checks
