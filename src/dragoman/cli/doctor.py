"""``dragoman doctor``: is everything there, and was it started the right way; one line a check."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from dragoman.cli.episodes import Store, plain
from dragoman.cli.output import console, print_json
from dragoman.home import DEFAULT_ENGINE, DEFAULT_GATEWAY

if TYPE_CHECKING:
    from dragoman.cli.checks import Check


def doctor(
    engine: Annotated[
        str | None, typer.Option(metavar="URL", help="Address of the engine (default: the gateway's, else port 8000).")
    ] = None,
    store: Store = None,
    gateway: Annotated[
        str | None, typer.Option(envvar="DRAGOMAN_GATEWAY", metavar="URL", help="Address of a gateway that must run.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Folder or name of the tokenizer's model (default: the engine's own).")
    ] = None,
    renderer: Annotated[str, typer.Option(help="The renderer that `dragoman serve` gets.")] = "auto",
    harness: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A harness that must be there; may be repeated.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the checks as JSON.")] = False,
) -> None:
    """Check the engine, the chat template, the store, the gateway, the CA and the harnesses.

    Exit code 1 when any check fails; each failure comes with a remedy.

    \b
        dragoman doctor
        dragoman doctor --engine http://gpu-box:8000 --harness pi --harness claude
    """
    checks = all_checks(engine, store, gateway, model, renderer, harness or [])
    failed = [check for check in checks if check.ok is False]
    if as_json:
        print_json([{"name": c.name, "ok": c.ok, "found": c.found, "remedy": c.remedy} for c in checks])
    else:
        for line in check_lines(checks):
            console().print(line, soft_wrap=True)
    if failed:
        raise typer.Exit(1)


def all_checks(
    engine: str | None,
    store: str | None,
    gateway: str | None,
    model: str | None,
    renderer: str,
    harnesses: Sequence[str],
) -> "list[Check]":
    """Every check, in the order in which a run needs what it looks at."""
    import os
    import time

    from dragoman.cli import checks
    from dragoman.cli.engine_checks import check_engine
    from dragoman.cli.episode import full_address, operator_credential
    from dragoman.home import default_store_url, state_folder
    from dragoman.rollout.harnesses import HARNESSES

    key = operator_credential()
    address = full_address(gateway or DEFAULT_GATEWAY)
    gateway_check, status = checks.check_gateway(address, key, wanted=gateway is not None)
    engine_model = None
    if engine is None and status is not None and status.observes is not None:
        found = [checks.remark("engine", "not looked at: the gateway only looks on and needs none")]
    else:
        named = engine or (status.engine if status is not None else DEFAULT_ENGINE)
        found, engine_model = check_engine(full_address(named).rstrip("/"))
    tokenizer = model or engine_model
    if tokenizer is None:
        model_checks = [checks.remark("template", "not looked at: no engine says which model, and --model names none")]
    else:
        model_checks = [checks.check_template(tokenizer, renderer), checks.check_bridges(tokenizer, renderer)]
    wanted = [checks.check_harness(name, wanted=True) for name in harnesses]
    others = [checks.check_harness(h.name, wanted=False) for h in HARNESSES if h.name not in harnesses]
    certificates = state_folder() / "certs"
    trust = [checks.check_trust(os.environ, certificates)]
    if gateway_check.ok and trust[0].ok is not None:
        trust.append(checks.check_gateway_ca(address, certificates))
    return [
        *found,
        *model_checks,
        checks.check_store(store or default_store_url()),
        *checks.check_outbox(state_folder() / "outbox.db", time.time()),
        gateway_check,
        *(checks.check_recording(status) if status is not None else ()),
        *trust,
        *wanted,
        *others,
        *checks.check_machine(),
    ]


def check_lines(checks: "Sequence[Check]") -> list[str]:
    """One line a check, in rich's markup, and under a failed one what to do."""
    words = {True: "[green]ok  [/green]", False: "[bold red]FAIL[/bold red]", None: "[dim]note[/dim]"}
    lines = []
    for check in checks:
        lines.append(f"{words[check.ok]} {check.name:<14} {plain(check.found)}")
        if check.ok is False:
            lines.append(f"{'':>19} [yellow]→ {plain(check.remedy)}[/yellow]")
    return lines
