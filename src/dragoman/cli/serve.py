"""``dragoman serve``: the gateway, which is mitmdump with our addon and options."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from dragoman.addons.egress import is_loopback, read_egress, read_upstream
from dragoman.cli.output import Failure, say
from dragoman.home import DEFAULT_ENGINE

CONTEXT = {"allow_extra_args": True}


@dataclass(frozen=True, slots=True)
class ServeOptions:
    host: str
    port: int
    engine: str
    store: str | None
    model: str | None
    renderer: str
    max_reply_tokens: int
    open_mode: bool
    egress: str
    observe: str | None
    fsync: bool
    outbox: Path | None
    outbox_megabytes: int | None
    flows: Path | None
    verbose: bool
    extra: tuple[str, ...]


def serve(
    context: typer.Context,
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where harnesses reach it.")] = "127.0.0.1:8080",
    engine: Annotated[str, typer.Option(metavar="URL", help="Address of the vLLM server.")] = DEFAULT_ENGINE,
    store: Annotated[
        str | None, typer.Option(metavar="URL", help="Database (default: dragoman.db in the state folder).")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Folder or name of the tokenizer's model (default: the engine's own).")
    ] = None,
    renderer: Annotated[
        str, typer.Option(help="How messages become tokens: `auto`, `template`, or a name of the renderers package.")
    ] = "auto",
    max_reply_tokens: Annotated[int, typer.Option(min=1, help="Cap on the tokens of one reply.")] = 4096,
    open_mode: Annotated[
        bool, typer.Option("--open", help="Open an episode by itself for traffic without a token (loopback only).")
    ] = False,
    egress: Annotated[
        str, typer.Option(help="Hosts that are no provider: `block`, `pass`, or 'allow HOST HOST…'.")
    ] = "block",
    observe: Annotated[
        str | None,
        typer.Option(
            metavar="provider|URL",
            help="Only look on: pass calls to the real provider, or to this address, and record what was said.",
        ),
    ] = None,
    fsync: Annotated[bool, typer.Option("--fsync", help="Survive power loss too, not only a killed process.")] = False,
    outbox: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Where records wait for PostgreSQL (default: outbox.db in the state folder)."
        ),
    ] = None,
    outbox_megabytes: Annotated[
        int | None, typer.Option(min=1, help="Waiting records beyond this hold new calls back (default: 1024).")
    ] = None,
    flows: Annotated[
        Path | None, typer.Option(help="Save what harnesses said and heard to this file, for `mitmdump -C`.")
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Log every request.")] = False,
) -> None:
    """Run the gateway: base-URL and HTTPS-proxy traffic on one port, recorded in the database. Ctrl-C stops it.

    Every request needs an episode's token; `dragoman episode open` gives one. Arguments after `--` go to mitmdump.

    \b
        dragoman serve
        dragoman serve --engine http://gpu-box:8000 --store postgresql+psycopg://user@db/dragoman
        dragoman serve --open --flows today.flows
    """
    host, port = split_listen(listen)
    options = ServeOptions(
        host=host,
        port=port,
        engine=engine,
        store=store,
        model=model,
        renderer=renderer,
        max_reply_tokens=max_reply_tokens,
        open_mode=open_mode,
        egress=egress,
        observe=observe,
        fsync=fsync,
        outbox=outbox,
        outbox_megabytes=outbox_megabytes,
        flows=flows,
        verbose=verbose,
        extra=tuple(context.args),
    )
    arguments = mitmdump_arguments(options)
    _check_startable(options)
    for line in greeting(options):
        say(line)
    from mitmproxy.tools.main import mitmdump

    mitmdump(arguments)


def split_listen(listen: str) -> tuple[str, int]:
    """``HOST:PORT``, ``[IPv6]:PORT`` or ``:PORT`` (loopback). Raises ``Failure``."""
    host, colon, port = listen.rpartition(":")
    if not colon or not port.isdecimal() or not 0 < int(port) < 65536:
        raise Failure(f"--listen {listen!r} is not HOST:PORT with a port from 1 to 65535")
    return host.strip("[]") or "127.0.0.1", int(port)


def mitmdump_arguments(options: ServeOptions) -> list[str]:
    """The command line for mitmdump. Raises ``Failure`` for a policy that is none, and when credentials would not be
    asked for beyond loopback."""
    import dragoman.addons

    try:
        read_egress(options.egress)
    except ValueError as error:
        raise Failure(f"--egress {error}") from error
    try:
        read_upstream(options.observe or "provider")
    except ValueError as error:
        raise Failure(f"--observe {error}") from error
    if options.open_mode and not is_loopback(options.host):
        raise Failure(f"--open asks for no credentials, so it listens on loopback only, not on {options.host}")
    script = Path(dragoman.addons.__file__).parent / "intercept.py"
    settings = {
        "dragoman_engine": options.engine,
        "dragoman_store": options.store,
        "dragoman_model": options.model,
        "dragoman_renderer": options.renderer,
        "dragoman_max_reply_tokens": str(options.max_reply_tokens),
        "dragoman_open": "true" if options.open_mode else None,
        "dragoman_egress": options.egress,
        "dragoman_observe": options.observe,
        "dragoman_fsync": "true" if options.fsync else None,
        "dragoman_outbox": None if options.outbox is None else str(options.outbox.absolute()),
        "dragoman_outbox_megabytes": None if options.outbox_megabytes is None else str(options.outbox_megabytes),
        # One line per request only when asked for; warnings always.
        "flow_detail": "1" if options.verbose else "0",
        "termlog_verbosity": "info" if options.verbose else "warn",
    }
    arguments = ["--listen-host", options.host, "--listen-port", str(options.port), "-s", str(script)]
    for name, value in settings.items():
        if value is not None:
            arguments += ["--set", f"{name}={value}"]
    if options.flows is not None:
        arguments += ["-w", str(options.flows)]
    return [*arguments, *options.extra]


def greeting(options: ServeOptions) -> list[str]:
    """What to tell whoever started the gateway: where it is, and how to point a harness at it."""
    from dragoman.home import default_store_url, state_folder

    host = f"[{options.host}]" if ":" in options.host else options.host
    address = f"http://{host}:{options.port}"
    lines = [
        f"gateway   {address}  (HTTPS proxy and base URL on one port; Ctrl-C stops it)",
        f"engine    {options.engine}" if options.observe is None else f"observes  calls go to {options.observe}",
        f"store     {options.store or default_store_url()}",
        f"CA        {state_folder() / 'certs' / 'mitmproxy-ca-cert.pem'}",
    ]
    if options.open_mode:
        lines.append(f"open mode: HTTPS_PROXY={address} needs no token")
    at = "" if address == "http://127.0.0.1:8080" else f" --gateway {address}"
    key = "" if options.observe is None else " --env ANTHROPIC_API_KEY"  # else the run's is one that is worth nothing
    lines.append(f"run a harness:          dragoman run{at} --harness claude{key} -- PROMPT")
    lines.append(f'point a harness at it:  eval "$(dragoman episode open{at})"')
    if not is_loopback(options.host):
        lines.append(
            f"warning: {options.host} is not loopback and the gateway's own port is plain HTTP; trust that network"
        )
    return lines


def _check_startable(options: ServeOptions) -> None:
    if sys.version_info < (3, 12):
        raise Failure("the gateway needs Python 3.12 or newer (mitmproxy 12 does); this is " + sys.version.split()[0])
    from dragoman.certs.authority import AuthorityError, ensure_authority
    from dragoman.cli.processes import why_no_listening
    from dragoman.home import default_store_url, operator_key, state_folder
    from dragoman.store.database import Database
    from dragoman.store.errors import StoreError

    if why := why_no_listening(options.host, options.port):
        raise Failure(f"cannot listen on {options.host} port {options.port}: {why}; choose another with --listen")
    try:
        ensure_authority(state_folder() / "certs")
        try:
            Database.open(options.store or default_store_url()).close()
        except StoreError:
            if not (options.outbox or state_folder() / "outbox.db").exists():  # else the gateway may start without it
                raise
    except (AuthorityError, StoreError) as error:
        raise Failure(str(error)) from error
    operator_key(state_folder())
