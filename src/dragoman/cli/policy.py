"""``dragoman policy``: which weights have been published, which are served, and publishing some by hand."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dragoman.cli.episodes import Store, age
from dragoman.cli.output import Failure, console, say

if TYPE_CHECKING:
    from dragoman.store.policies import LoadInfo, PolicyInfo, PolicyKind

app = typer.Typer(no_args_is_help=True, help="Policy versions: list them, or publish weights by hand.")


@app.command(name="list")
def list_(
    limit: Annotated[int, typer.Option(min=1, help="How many, newest first.")] = 20,
    json_lines: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
    store: Store = None,
) -> None:
    """List the published policies, newest first, and what became of each in each engine."""
    import json
    from dataclasses import asdict

    from dragoman.cli.lookup import reading
    from dragoman.store.policies import list_policies

    with reading(store) as (session, _):
        found = list_policies(session, limit=limit)
    if json_lines:
        for policy, loads in found:
            print(json.dumps({**asdict(policy), "loads": [asdict(load) for load in loads]}))
        return
    if not found:
        say("no policy has been published: the engine's own weights (base) are served")
        return
    for policy, loads in found:
        _show(policy, loads)


@app.command()
def push(
    folder: Annotated[Path, typer.Argument(help="A LoRA adapter, or a whole model of the engine's shape.")],
    wait: Annotated[float, typer.Option(min=0, help="Seconds to wait until gateways serve it.")] = 60,
    store: Store = None,
) -> None:
    """Publish the weights in FOLDER as the next version; running gateways have their engines load it.

    \b
    A folder with adapter_config.json is an adapter, and the engine must have been started with --lora. The version
    before goes on when it fails. To go back to an older version, push its folder again.
        dragoman policy push runs/one/policies/step-40
    """
    from dragoman.home import default_store_url
    from dragoman.store.database import Database
    from dragoman.store.errors import StoreError
    from dragoman.trainer.weights import add, wait_served

    kind = folder_kind(folder)
    try:
        database = Database.open(store or default_store_url())
        policy = add(database, path=folder.absolute(), kind=kind, run=None, step=None, metrics={})
        say(f"{policy.version} is published: {policy.kind}, {policy.path}")
        published = wait_served(database, policy, timeout=wait)
    except StoreError as error:
        raise Failure(str(error)) from error
    if not published.serving:
        raise Failure(f"{published.version} is not served: {published.reason}")
    say(f"{published.version} is served")


def folder_kind(folder: Path) -> "PolicyKind":
    """What a folder of weights holds. Raises ``Failure`` when it is none."""
    if (folder / "adapter_config.json").is_file():
        return "lora"
    if (folder / "config.json").is_file():
        return "full"
    raise Failure(f"{folder} has no adapter_config.json and no config.json: it is no folder of weights")


def _show(policy: "PolicyInfo", loads: "tuple[LoadInfo, ...]") -> None:
    from rich.markup import escape

    metrics = "  ".join(f"{name} {value:.4g}" for name, value in policy.metrics.items())
    origin = f"  run {policy.run} step {policy.step}" if policy.run is not None else ""
    line = f"{policy.version}  {policy.kind}  {age(time.time() - policy.created_at)} ago{origin}  {policy.path}"
    console().print(escape(f"{line}  {metrics}".rstrip()), highlight=False, soft_wrap=True)
    for load in loads or ():
        reason = f": {load.reason}" if load.reason else ""
        console().print(escape(f"    {load.engine}  {load.status}{reason}"), highlight=False, soft_wrap=True)
    if not loads:
        console().print("    no gateway has taken it up", highlight=False)
