"""The evaluation table as text, JSON, Markdown and CSV.

Rules of this module: every function gives the whole text, ending in a line break. People see rounded figures; JSON and
CSV have them all, unrounded.
"""

import csv
import io
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dragoman.cli.episodes import plain
from dragoman.cli.output import console

if TYPE_CHECKING:
    from dragoman.monitor.estimates import Estimate
    from dragoman.monitor.evals import Comparison, EvalRow
    from dragoman.store.records import JsonObject

FIGURES = ("turns", "prompt_tokens", "completion_tokens", "tool_calls", "tool_errors", "exact", "seconds")
COUNTS = ("episodes", "tasks", "scored", "passed", "timed_out", "infrastructure", "open")
ERRORS = ("malformed", "unknown", "missing", "ignored")


def as_json(rows: "Sequence[EvalRow]", compared: "Sequence[Comparison] | None", pass_at: float) -> str:
    value: JsonObject = {"pass_at": pass_at, "rows": [row_json(row) for row in rows]}
    if compared is not None:
        value["comparisons"] = [comparison_json(one) for one in compared]
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def row_json(row: "EvalRow") -> "JsonObject":
    """``null`` means not known, or too few episodes."""
    return {
        **dict(row.labels),
        **{name: getattr(row, name) for name in COUNTS},
        "pass": {
            str(rate.k): None if rate.estimate is None else {**estimate_json(rate.estimate), "tasks": rate.tasks}
            for rate in row.passes
        },
        "reward": None if row.reward is None else estimate_json(row.reward),
        **{name: getattr(row, name) for name in FIGURES},
        "tool_errors_by_kind": {name: getattr(row.errors, name) for name in ERRORS},
    }


def estimate_json(estimate: "Estimate") -> "JsonObject":
    return {"value": estimate.value, "low": estimate.low, "high": estimate.high, "interval": estimate.method}


def comparison_json(one: "Comparison") -> "JsonObject":
    return {
        **dict(one.labels),
        "first": one.first,
        "second": one.second,
        "tasks": len(one.pairs),
        "unpaired_tasks": one.unpaired,
        **{f"{outcome}_count": one.count(outcome) for outcome in ("win", "loss", "tie")},
        "mcnemar_p": one.p_value,
        "difference": None if one.difference is None else estimate_json(one.difference),
        "reward_difference": None if one.reward_difference is None else estimate_json(one.reward_difference),
        "by_task": [
            {
                "task": pair.task,
                "first": {"episodes": pair.first[0], "passed": pair.first[1]},
                "second": {"episodes": pair.second[0], "passed": pair.second[1]},
                "outcome": pair.outcome,
            }
            for pair in one.pairs
        ],
    }


def as_csv(rows: "Sequence[EvalRow]", compared: "Sequence[Comparison] | None", pass_at: float) -> str:
    """A line for each row; of a comparison, a line for each task."""
    lines = (
        [row_line(row) for row in rows] if compared is None else [line for one in compared for line in tasks_of(one)]
    )
    text = io.StringIO()
    if lines:
        writer = csv.DictWriter(text, list(lines[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)
    return text.getvalue()


def row_line(row: "EvalRow") -> "JsonObject":
    line: JsonObject = {**dict(row.labels), **{name: getattr(row, name) for name in COUNTS}}
    estimates = [(f"pass@{rate.k}", rate.estimate) for rate in row.passes]
    for name, estimate in (*estimates, ("reward", row.reward)):
        line[name] = None if estimate is None else estimate.value
        line[f"{name}_low"] = None if estimate is None else estimate.low
        line[f"{name}_high"] = None if estimate is None else estimate.high
    line |= {name: getattr(row, name) for name in FIGURES}
    return line | {name: getattr(row.errors, name) for name in ERRORS}


def tasks_of(one: "Comparison") -> "list[JsonObject]":
    return [
        {
            **dict(one.labels),
            "task": pair.task,
            "first": one.first,
            "second": one.second,
            "first_episodes": pair.first[0],
            "first_passed": pair.first[1],
            "second_episodes": pair.second[0],
            "second_passed": pair.second[1],
            "outcome": pair.outcome,
        }
        for pair in one.pairs
    ]


def as_markdown(rows: "Sequence[EvalRow]", compared: "Sequence[Comparison] | None", pass_at: float) -> str:
    names, cells = grid(rows)
    labels = len(rows[0].labels) if rows else 0
    lines = [markdown_line(names), "|" + " --- |" * labels + " ---: |" * (len(names) - labels)]
    lines += [markdown_line(line) for line in cells]
    lines += ["", *notes(rows, pass_at)]
    for one in compared or ():
        lines += ["", *said_of(one)]
        if changed := changed_tasks(one):
            lines += ["", markdown_line(("task", one.first, one.second, "outcome")), "| --- | ---: | ---: | --- |"]
            lines += [markdown_line(line) for line in changed]
    return "\n".join(lines) + "\n"


def markdown_line(cells: Sequence[str]) -> str:
    """Names of tasks and runs are whoever's: they must not end a cell, or become markup or HTML."""
    clean = (" ".join(cell.split()).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;") for cell in cells)
    return "| " + " | ".join(cell.replace("`", "\\`") for cell in clean) + " |"


def as_table(rows: "Sequence[EvalRow]", compared: "Sequence[Comparison] | None", pass_at: float) -> str:
    from rich.table import Table

    def made(names: Sequence[str], lines: Sequence[Sequence[str]], left: int) -> Table:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for number, name in enumerate(names):
            table.add_column(plain(name), justify="left" if number < left else "right", overflow="fold")
        for line in lines:
            table.add_row(*map(plain, line))
        return table

    out = console()
    names, cells = grid(rows)
    with out.capture() as captured:
        out.print(made(names, cells, len(rows[0].labels) if rows else 0))
        for note in notes(rows, pass_at):
            out.print(plain(note), soft_wrap=True)
        for one in compared or ():
            out.print()
            for line in said_of(one):
                out.print(plain(line), soft_wrap=True)
            if changed := changed_tasks(one):
                out.print(made(("task", one.first, one.second, "outcome"), changed, 1))
    return captured.get()


def grid(rows: "Sequence[EvalRow]") -> tuple[list[str], list[list[str]]]:
    """Names of the columns, and the cells, for people."""
    labels = [name for name, _ in rows[0].labels] if rows else []
    rates = [f"pass@{rate.k}" for rate in rows[0].passes] if rows else []
    names = [
        *labels,
        "episodes",
        "tasks",
        *rates,
        "reward",
        "turns",
        "tokens in",
        "out",
        "tool errors",
        "exact",
        "time",
    ]
    return names, [
        [
            *("-" if value is None else value for _, value in row.labels),
            f"{row.episodes:,}",
            f"{row.tasks:,}",
            *(estimated(rate.estimate) for rate in row.passes),
            estimated(row.reward),
            number(row.turns, ".1f"),
            number(row.prompt_tokens, ",.0f"),
            number(row.completion_tokens, ",.0f"),
            number(row.tool_errors, ".2f"),
            number(row.exact, ".1%"),
            number(row.seconds, ",.0f", " s"),
        ]
        for row in rows
    ]


def notes(rows: "Sequence[EvalRow]", pass_at: float) -> list[str]:
    """What must be known to read the table."""
    kinds = ", ".join(
        f"{name} {count:,}" for name in ERRORS if (count := sum(getattr(row.errors, name) for row in rows))
    )
    left_out = (
        (sum(row.episodes - row.scored for row in rows), "without a reward"),
        (sum(row.infrastructure for row in rows), "failed by infrastructure"),
        (sum(row.open for row in rows), "still open"),
    )
    said = ", ".join(f"{count:,} {why}" for count, why in left_out if count)
    lines = [f"An episode passes with a reward of {pass_at:g} or more. Intervals: 95 %, over tasks."]
    if said:
        lines.append(f"Not in the rates: {said}.")
    return [*lines, f"Tool errors: {kinds}."] if kinds else lines


def said_of(one: "Comparison") -> list[str]:
    """A comparison in sentences."""
    where = ", ".join("-" if value is None else value for _, value in one.labels)
    wins, losses, ties = one.count("win"), one.count("loss"), one.count("tie")
    lines = [
        f"{where + ': ' if where else ''}{one.second} against {one.first}, {len(one.pairs):,} tasks in common: "
        f"{wins:,} wins, {losses:,} losses, {ties:,} ties; McNemar p = {one.p_value:.3g}"
    ]
    if one.difference is not None:
        lines.append(
            f"pass@1 {estimated(one.difference, '+.3f')}, mean reward {estimated(one.reward_difference, '+.3f')}"
        )
    if one.unpaired:
        lines.append(f"{one.unpaired:,} tasks are not compared: only one of the two has scored episodes of them.")
    return lines


def changed_tasks(one: "Comparison") -> list[tuple[str, str, str, str]]:
    """The tasks won, then those lost, the greatest difference first."""
    pairs = [pair for pair in one.pairs if pair.outcome != "tie"]
    pairs.sort(key=lambda pair: (pair.outcome == "loss", -abs(pair.difference), pair.task))
    return [
        (pair.task, f"{pair.first[1]}/{pair.first[0]}", f"{pair.second[1]}/{pair.second[0]}", pair.outcome)
        for pair in pairs
    ]


def estimated(estimate: "Estimate | None", form: str = ".3f") -> str:
    if estimate is None:
        return "-"
    if estimate.low is None or estimate.high is None:
        return format(estimate.value, form)
    return f"{estimate.value:{form}} [{estimate.low:{form}}, {estimate.high:{form}}]"


def number(value: float | None, form: str, unit: str = "") -> str:
    return "-" if value is None else format(value, form) + unit
