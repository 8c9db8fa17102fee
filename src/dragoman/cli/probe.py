"""``dragoman harness probe``: whether a harness can be trained in, and what it makes of bad replies and failures."""

import dataclasses
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from dragoman.cli.output import Failure, console, say

if TYPE_CHECKING:
    from rich.table import Table

    from dragoman.cli.probe_run import Mode, Probe
    from dragoman.rollout.probe.records import Report

CONTEXT = {"allow_interspersed_args": False}
NOT_TRAINABLE, NOT_STARTED = 1, 2


def probe(
    words: Annotated[
        list[str] | None, typer.Argument(metavar="COMMAND", help="The harness's own command line, for one prompt.")
    ] = None,
    harness: Annotated[str | None, typer.Option(help="Instead of COMMAND a name of `dragoman harness list`.")] = None,
    variant: Annotated[str | None, typer.Option(help="One of that harness's variants (default: its first).")] = None,
    mode: Annotated[
        Literal["base-url", "proxy", "both"], typer.Option(help="In which way it is brought to the gateway.")
    ] = "both",
    prompt: Annotated[str | None, typer.Option(help="What it is asked (default: to write a file).")] = None,
    model: Annotated[str, typer.Option(help="The model's name for {model}.")] = "gpt-4.1-mini",
    timeout: Annotated[float, typer.Option(min=1, help="Seconds for each of its runs.")] = 90,
    long: Annotated[bool, typer.Option("--long", help="Try what takes minutes, too: its patience.")] = False,
    case: Annotated[
        list[str] | None, typer.Option(help="Only this case, behind the first one; may be repeated.")
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME[=VALUE]", help="A variable for it, by NAME alone from this shell; may be repeated."),
    ] = None,
    network: Annotated[
        Literal["private", "shared"],
        typer.Option(help="`private`: one with nothing but loopback, where the system lets us. `shared`: this one."),
    ] = "private",
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the report as JSON, too; - is stdout, alone.")
    ] = None,
    keep: Annotated[
        Path | None, typer.Option(metavar="DIR", help="A new folder for logs, flows, database and output, kept.")
    ] = None,
) -> None:
    """Run a harness against a scripted model, by base URL and by proxy, and say whether it can be trained in.

    It needs no engine, no gateway and no key, changes nothing of yours, and takes about a minute or two: some fifteen
    short runs. COMMAND may hold {prompt}, {base_url} (no /v1), {api_key}, {model} and {workdir}; without {prompt} it
    gets the prompt on stdin. It finds OPENAI_BASE_URL, ANTHROPIC_BASE_URL, GOOGLE_GEMINI_BASE_URL, a key for each, or
    HTTPS_PROXY and the variables that make it trust the CA.

    The exit code is 0 when it is trainable, as it is or with settings; 1 when not; 2 when it could not be started.

    \b
        dragoman harness probe -- my-agent --yes {prompt}
        dragoman harness probe -- my-agent --api-base {base_url}/v1 --key {api_key} -p {prompt}
        dragoman harness probe --harness claude --json claude.json
    """
    from dragoman.cli.run import read_variables
    from dragoman.signals import terminable

    modes: tuple[Mode, ...] = ("base-url", "proxy") if mode == "both" else (mode,)
    named = names_of_cases(case or [])
    variables = read_variables(env or [])
    wanted = plan(tuple(words or ()), harness, variant, modes, prompt, model, timeout, long, named, variables)
    with folder_for(keep) as folder, terminable():
        report = report_on(wanted, folder, private=network == "private")
    as_json = json.dumps(dataclasses.asdict(report), indent=2, ensure_ascii=False)
    if json_file is not None and str(json_file) == "-":
        print(as_json)
    else:
        print_report(report)
        if json_file is not None:
            json_file.write_text(as_json + "\n")
    raise typer.Exit(NOT_TRAINABLE if report.verdict == "not trainable" else 0)


def plan(
    words: tuple[str, ...],
    harness: str | None,
    variant: str | None,
    modes: "tuple[Mode, ...]",
    prompt: str | None,
    model: str,
    timeout: float,
    long: bool,
    only: tuple[str, ...],
    env: dict[str, str],
) -> "Probe":
    """What is to be run. Wrong usage ends with exit code 2."""
    from dragoman.cli.probe_run import Probe
    from dragoman.cli.run_plan import installed_harness
    from dragoman.rollout.probe.cases import PROMPT

    if (harness is None) == (not words):
        raise wrong("name one: --harness NAME, or -- COMMAND…")
    if words and variant is not None:
        raise wrong("--variant goes with --harness")
    entry, place = None, None
    if harness is not None:
        try:
            entry, place = installed_harness(harness)
        except Failure as error:
            raise wrong(str(error)) from error
        if variant is not None and variant not in entry.variants:
            raise wrong(f"{harness} has no variant {variant!r}; there are: {', '.join(entry.variants) or 'none'}")
    return Probe(
        harness=entry,
        place=place,
        words=tuple(whole_path(word, program=at == 0) for at, word in enumerate(words)),
        modes=modes,
        prompt=prompt or PROMPT,
        variant=variant,
        model=model,
        timeout=timeout,
        long=long,
        only=only,
        env=env,
        path=os.environ.get("PATH", os.defpath),
    )


def whole_path(word: str, *, program: bool) -> str:
    """A word that names a file from here, with its whole path: the harness runs in another folder.

    The program's own name is one only with a slash, as in a shell.
    """
    path = Path(word)
    if path.is_absolute() or (program and "/" not in word) or len(word) > 255:
        return word
    return str(path.absolute()) if path.is_file() else word


def names_of_cases(named: list[str]) -> tuple[str, ...]:
    """The cases that were asked for. A name that there is not ends with exit code 2."""
    from dragoman.rollout.probe.cases import CASES

    names = [case.name for case in CASES]
    if unknown := [name for name in named if name not in names]:
        raise wrong(f"there is no case {unknown[0]!r}; there are: {', '.join(names)}")
    return tuple(named)


def wrong(message: str) -> typer.Exit:
    """Say what is wrong; the exit to raise for what could not be started."""
    say(f"dragoman: {message}")
    return typer.Exit(NOT_STARTED)


@contextmanager
def folder_for(keep: Path | None) -> Iterator[Path]:
    """A folder for the probe: a new one of that name, or one that is removed afterwards."""
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="dragoman-probe-", ignore_cleanup_errors=True) as folder:
            yield Path(folder)
        return
    try:
        keep.mkdir(parents=True, mode=0o700)
    except FileExistsError:
        raise wrong(f"--keep {keep} is there already") from None
    yield keep.resolve()


def report_on(wanted: "Probe", folder: Path, *, private: bool) -> "Report":
    """Run the probe and judge it. Raises ``Failure`` when engine or gateway do not start."""
    import sys

    from dragoman.cli.probe_run import play
    from dragoman.rollout.probe.verdict import judge

    if sys.version_info < (3, 12):
        raise wrong("the probe starts a gateway, which needs Python 3.12 or newer")
    try:
        runs = play(wanted, folder, private=private, say=lambda text: say(f"… {text}"))
    except OSError as error:
        raise wrong(f"cannot start it: {error}") from error
    harness = wanted.harness
    return judge(
        runs,
        what=" ".join(wanted.words) if harness is None else harness.name,
        version=None if harness is None else harness.version,
        variant=None if harness is None else wanted.variant or next(iter(harness.variants), None),
        isolated=any(run.names is not None for run in runs),
        told=told(wanted, folder),
    )


def told(wanted: "Probe", folder: Path) -> list[str]:
    """What the harness must be told by base URL beside the variables that every program is given, one line each."""
    from dragoman.rollout.launch import Target, shell

    if wanted.harness is None:
        named = [name for name in ("{base_url}", "{api_key}") if any(name in word for word in wanted.words)]
        return [f"its arguments name {' and '.join(named)}"] if named and "base-url" in wanted.modes else []
    if "base-url" not in wanted.modes:
        return []
    target = Target("http://127.0.0.1:1", "0" * 32, "base-url", folder / "state" / "certs")
    home = Path("~")
    setup = shell(wanted.harness, target, folder=home, variant=wanted.variant)
    plain = shell(None, target, folder=home)
    files = [str(path) for path, _ in setup.files]
    said = [f"by base URL its settings in {', '.join(files)}"] if files else []
    if options := setup.arguments:
        said.append(f"its options {' '.join(options)}")
    # an address under a name that only this harness reads
    if own := sorted(name for name in setup.env.keys() - plain.env.keys() if "URL" in name or "BASE" in name):
        said.append(f"by base URL {', '.join(own)}")
    return said


# -- for people ------------------------------------------------------------------------------------------------------


def print_report(report: "Report") -> None:
    from dragoman.cli.episodes import plain

    out = console()
    name = " ".join(word for word in (report.what, report.variant, report.version) if word)
    out.print(f"[bold]{plain(name)}[/bold]" + ("" if report.isolated else "  (not in a network of its own)"))
    out.print(findings_table(report))
    colour = {"trainable as is": "green", "trainable with these settings": "yellow", "not trainable": "red"}
    end = {"trainable as is": ".", "trainable with these settings": ":", "not trainable": ", because:"}[report.verdict]
    out.print(f"\n[bold {colour[report.verdict]}]{report.verdict}{end}[/]")
    for line in (*report.settings, *report.because):
        out.print(f"- {plain(line)}")
    if report.notes:
        out.print("Worth knowing:")
        for line in report.notes:
            out.print(f"- {plain(line)}")


def findings_table(report: "Report") -> "Table":
    from rich.table import Table

    from dragoman.cli.episodes import plain

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("asked")
    table.add_column("mode")
    table.add_column("answer", overflow="fold")
    table.add_column("detail", overflow="fold")
    colours = {"good": "green", "plain": "", "bad": "red", "not tried": "dim"}
    for finding in report.findings:
        style = colours[finding.weight]
        answer = plain(finding.answer)
        table.add_row(
            finding.about, finding.mode or "", f"[{style}]{answer}[/]" if style else answer, plain(finding.detail)
        )
    return table
