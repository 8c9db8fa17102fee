"""The addon's options in mitmproxy: what they are called, what they may be, and the settings they come to.

Rules of this module: a wrong value ends the start with a sentence that names the option. mitmproxy's own options that
Dragoman cannot do without are set here as well.
"""

from pathlib import Path

from mitmproxy import ctx, exceptions
from mitmproxy.addonmanager import Loader
from mitmproxy.options import Options

from dragoman import home
from dragoman.addons.egress import is_loopback, read_egress, read_upstream
from dragoman.addons.settings import Settings
from dragoman.certs.authority import ensure_authority

BODY_LIMIT = "256m"
"""mitmproxy's own limit, for bodies in both directions; the app has a smaller one for requests."""


def add_options(loader: Loader) -> None:
    """Make the options known, and set mitmproxy's own."""
    add = loader.add_option
    add("dragoman_engine", str, home.DEFAULT_ENGINE, "Address of the vLLM server.")
    add("dragoman_store", str, "", "SQLAlchemy URL of the store. Default: dragoman.db in the state folder.")
    add("dragoman_model", str, "", "Folder or name of the tokenizer's model. Default: the engine's own.")
    add("dragoman_renderer", str, "auto", "Message renderer: auto, template, or a name of the renderers package.")
    add("dragoman_max_reply_tokens", int, 4096, "Cap on the tokens of one reply.")
    add("dragoman_thinking", str, "template", "Earlier reasoning that the template drops: template, or keep.")
    add("dragoman_open", bool, False, "Open an episode by itself for traffic without a token (loopback only).")
    add("dragoman_egress", str, "block", "Hosts that are no provider: block, pass, or 'allow HOST…'.")
    add("dragoman_observe", str, "", "Only look on: pass calls to 'provider', or to an address, and record them.")
    add("dragoman_names", str, "", "Further host names under which harnesses reach this gateway, by spaces.")
    add("dragoman_fsync", bool, False, "Survive power loss too, at the price of one fsync a commit.")
    add("dragoman_outbox", str, "", "File where records wait for PostgreSQL. Default: outbox.db in the state folder.")
    add("dragoman_outbox_megabytes", int, 1024, "Waiting records beyond this hold new calls back.")
    add("dragoman_websockets", bool, True, "Take WebSockets (Codex); if not, answer 426 and it takes HTTP.")
    add("dragoman_replay_token", str, "", "Episode token for flows replayed with -C (credentials are not saved).")
    # Before mitmproxy is told of the folder: it would make an authority of its own there.
    ensure_authority(home.state_folder() / "certs")
    # The harness speaks to us; mitmproxy must never dial the real provider by itself.
    ctx.options.update(confdir=str(home.state_folder() / "certs"), connection_strategy="lazy", upstream_cert=False)
    # What is neither HTTP nor WebSocket would pass every check below.
    ctx.options.update(rawtcp=False)
    if ctx.options.body_size_limit is None:
        ctx.options.update(body_size_limit=BODY_LIMIT)


def check_options(updated: set[str]) -> None:
    """Raises ``OptionsError`` for a value that is none."""
    options = ctx.options
    for name, read in (("dragoman_egress", read_egress), ("dragoman_observe", read_upstream)):
        value = getattr(options, name)
        try:
            if name in updated and (value or name == "dragoman_egress"):
                read(value)
        except ValueError as error:
            raise exceptions.OptionsError(f"{name}: {error}") from error
    if "dragoman_thinking" in updated and options.dragoman_thinking not in ("template", "keep"):
        raise exceptions.OptionsError(f"dragoman_thinking must be template or keep, not {options.dragoman_thinking!r}")
    if "dragoman_max_reply_tokens" in updated and options.dragoman_max_reply_tokens < 1:
        raise exceptions.OptionsError("dragoman_max_reply_tokens must be at least 1")
    if "dragoman_outbox_megabytes" in updated and options.dragoman_outbox_megabytes < 1:
        raise exceptions.OptionsError("dragoman_outbox_megabytes must be at least 1")
    if options.dragoman_open and not is_loopback(options.listen_host or ""):
        raise exceptions.OptionsError("dragoman_open needs --listen-host 127.0.0.1: it asks for no credential")


def read_settings(options: Options) -> Settings:
    """What the options come to, once all are set. Raises ``OptionsError`` for one of ours that there is not: mitmproxy
    keeps an unknown name for an addon that might still come."""
    if unknown := sorted(name for name in options.deferred if name.startswith("dragoman_")):
        raise exceptions.OptionsError(f"{unknown[0]} is no option; `mitmdump --options` lists them")
    return Settings(
        store=options.dragoman_store or home.default_store_url(),
        operator_key=home.operator_key(home.state_folder()),
        engine=options.dragoman_engine,
        model=options.dragoman_model or None,
        observe=options.dragoman_observe or None,
        renderer=options.dragoman_renderer,
        thinking=options.dragoman_thinking,
        max_reply_tokens=options.dragoman_max_reply_tokens,
        open_mode=options.dragoman_open,
        fsync=options.dragoman_fsync,
        outbox=Path(options.dragoman_outbox).expanduser() if options.dragoman_outbox else None,
        outbox_limit=options.dragoman_outbox_megabytes * 1024**2,
        websockets=options.dragoman_websockets,
    )


def own_address(options: Options) -> str:
    """Where this gateway is reached from this machine."""
    host = options.listen_host or "127.0.0.1"
    return f"http://{f'[{host}]' if ':' in host else host}:{options.listen_port or 8080}"
