"""Options that several commands have, each described once.

Rules of this module: an option stands here when it means the same in every command that has it.
"""

from typing import Annotated, Literal

import typer

Task = Annotated[str | None, typer.Option(help="Name of the task. Without one the episode is ad hoc.")]
Group = Annotated[str | None, typer.Option(help="Name of the group within the task.")]
Expected = Annotated[int | None, typer.Option(min=1, help="How many episodes the group waits for.")]
Deadline = Annotated[
    float | None, typer.Option(min=0, help="Seconds until missing episodes of the group count as abandoned.")
]
Profile = Annotated[
    Literal["train", "as_asked"] | None,
    typer.Option(help="`train`: sample as the run says. `as_asked`: as the harness asks."),
]
Temperature = Annotated[float | None, typer.Option(min=0, help="Temperature of the `train` profile.")]
Way = Annotated[Literal["proxy", "base-url"], typer.Option("--mode", help="How the harness will reach the gateway.")]
Variant = Annotated[str | None, typer.Option(help="One of the harness's variants (default: its first).")]
ModelName = Annotated[
    str | None, typer.Option("--model", help="The model's name that the harness asks for; the gateway answers to any.")
]
