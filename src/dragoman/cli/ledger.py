"""``dragoman ledger``: whether every call and every sampled token is accounted for, and which calls are not trained."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dragoman.cli.episodes import Store, plain
from dragoman.cli.output import Failure, console, print_json

if TYPE_CHECKING:
    from rich.table import Table

    from dragoman.store.flow_calls import FlowCall
    from dragoman.store.ledger import Ledger
    from dragoman.store.records import CallInfo, JsonObject


def ledger(
    episode: Annotated[str | None, typer.Argument(metavar="EPISODE", help="Id of an episode, or its start.")] = None,
    every: Annotated[bool, typer.Option("--all", help="All episodes; sums by stored lengths, tokens unread.")] = False,
    flows: Annotated[
        list[Path] | None,
        typer.Option(help="Saved flows of the gateway: every call since they began must be in them, and the reverse."),
    ] = None,
    store: Store = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """Show what became of every call and every sampled token; exit with 1 if the sums do not come out.

    \b
        dragoman ledger k3v9
        dragoman ledger --all --flows today.flows
    """
    from dragoman.cli.lookup import find_id, reading
    from dragoman.store.call_facts import read_facts
    from dragoman.store.calls import read_calls
    from dragoman.store.flow_calls import compare_with_flows
    from dragoman.store.ledger import audit, audit_facts, total

    if every == (episode is not None):
        raise Failure("name one episode, or say --all; `dragoman episodes` lists them")
    # Flows first: a call is stored before its flow is saved, so none of these can be newer than the store.
    seen = [call for file in flows or () for call in read_flows(file)]
    calls: list[CallInfo] | None = None
    with reading(store) as (session, url):
        facts = read_facts(session) if every or flows else {}
        if episode is None:
            sums = total(audit_facts(of_episode) for of_episode in facts.values())
            name = f"all {len(facts)} with calls"
        else:
            name, _ = find_id(session, episode)
            calls = read_calls(session, name)
            sums = audit(calls)
    differences: tuple[str, ...] = ()
    if flows:
        since = min((call.started_at for call in seen), default=float("inf"))
        stored = [call for of_episode in facts.values() for call in of_episode if call.arrived_at >= since]
        differences = compare_with_flows(stored, seen)
    if as_json:
        print_json(ledger_json(name, sums, url, len(seen) if flows else None, differences))
    else:
        print_ledger(name, sums, url, len(seen) if flows else None, differences, calls)
    if not sums.balances or differences:
        raise typer.Exit(1)


def ledger_json(name: str, sums: "Ledger", url: str, flows: int | None, differences: Sequence[str]) -> "JsonObject":
    """``flow_calls``: calls in the saved flows; ``null``: none were given."""
    counts = ("arrived", "answered", "observed", "refused", "failed", "aborted", "open")
    return {
        "episode": name,
        "calls": {count: getattr(sums, count) for count in counts},
        "sampled_tokens": sums.sampled_tokens,
        "traced_tokens": sums.traced_tokens,
        "traces": sums.traces,
        "excluded_tokens": sums.excluded_tokens,
        "excluded_calls": sums.excluded_calls,
        "flow_calls": flows,
        "problems": [*sums.problems, *differences],
        "balances": sums.balances and not differences,
        "store": url,
    }


def print_ledger(
    name: str,
    sums: "Ledger",
    url: str,
    flows: int | None,
    differences: Sequence[str],
    calls: "Sequence[CallInfo] | None",
) -> None:
    """The sums, then whether they come out. ``calls``: the episode's, to list exclusions; ``None``: of several."""
    out = console()
    facts = {
        "episodes" if calls is None else "episode": name,
        "calls": f"{sums.arrived:,} arrived = {sums.answered:,} answered + "
        + (f"{sums.observed:,} observed + " if sums.observed else "")
        + f"{sums.refused:,} refused + {sums.failed:,} failed + {sums.aborted:,} aborted + {sums.open:,} open",
        "tokens": f"{sums.sampled_tokens:,} sampled = {sums.traced_tokens:,} in {count(sums.traces, 'trace')} + "
        f"{sum(sums.excluded_tokens.values()):,} excluded",
        "excluded": ", ".join(
            f"{reason} {tokens:,} ({count(len(sums.excluded_calls[reason]), 'call')})"
            for reason, tokens in sums.excluded_tokens.items()
        )
        or "nothing",
        "database": url,
    }
    if flows is not None:
        facts["flows"] = count(flows, "call")
    for fact, value in facts.items():
        out.print(f"[bold]{fact:<13}[/bold] {plain(value)}")
    if calls is not None and sums.excluded:
        out.print()
        out.print(excluded_table(sums, calls))
    problems = [*sums.problems, *differences]
    out.print()
    out.print("[bold red]It does not balance:[/bold red]" if problems else "[bold green]It balances.[/bold green]")
    for problem in problems:
        out.print(f"- {plain(problem)}")


def excluded_table(sums: "Ledger", calls: "Sequence[CallInfo]") -> "Table":
    """The excluded calls in order of arrival: their numbers are those of ``dragoman show``."""
    from rich.table import Table

    from dragoman.cli.call_view import trouble

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("#", justify="right")
    for column in ("call", "kind", "excluded as"):
        table.add_column(column)
    table.add_column("tokens", justify="right")
    table.add_column("said", overflow="fold")
    excluded = {entry.call_id: entry for entry in sums.excluded}
    for number, call in enumerate(calls, 1):
        if (entry := excluded.get(call.arrival.id)) is not None:
            said = plain(trouble(call))
            table.add_row(str(number), call.arrival.id, call.arrival.kind, entry.reason, f"{entry.tokens:,}", said)
    return table


def count(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def read_flows(file: Path) -> "Iterator[FlowCall]":
    """The requests on generation routes in a file of saved flows that reached the gateway whole."""
    try:
        from mitmproxy.exceptions import FlowReadException
        from mitmproxy.http import HTTPFlow
        from mitmproxy.io import FlowReader
    except ImportError as error:
        raise Failure("--flows needs mitmproxy: run it in the gateway's environment (Python 3.12 or later)") from error
    from dragoman.addons.providers import find_provider, provider_for_host
    from dragoman.store.flow_calls import FlowCall, SocketMessage, find_call_id, socket_calls

    try:
        with file.open("rb") as stream:
            for flow in FlowReader(stream).stream():
                if not isinstance(flow, HTTPFlow) or flow.request.timestamp_end is None:
                    continue
                request, response = flow.request, flow.response
                path, _, query = request.path.partition("?")
                host = request.host if provider_for_host(request.host) is not None else None
                if host is None and request.scheme != "http":
                    continue  # base-URL mode is plain HTTP; this went to somebody else
                # a WebSocket's handshake is a GET; what goes over it are the same requests
                method = request.method if flow.websocket is None else "POST"
                found = find_provider(host=host, method=method, path=path, query=query, headers=request.headers)
                if found is None or found[1].kind != "generate":
                    continue
                if flow.websocket is not None:
                    yield from socket_calls(
                        path, (SocketMessage(m.from_client, m.timestamp, m.content) for m in flow.websocket.messages)
                    )
                    continue
                reply = b"" if response is None else response.get_content(strict=False) or b""
                status = None if response is None else response.status_code
                yield FlowCall(path, request.timestamp_start, status, find_call_id(reply))
    except OSError as error:
        raise Failure(f"--flows {file} cannot be read: {error.strerror}") from error
    except FlowReadException as error:
        raise Failure(f"--flows {file} is no file of saved flows, or damaged: {error}") from error
