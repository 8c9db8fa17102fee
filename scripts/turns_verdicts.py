"""Whether a row of several turns came out as it was written down, and the table of them. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence

from scripts.harness_outcome import Outcome
from scripts.harness_rows import Row
from scripts.harness_verdicts import WANTED_HASH, got_out, unexpected_calls
from scripts.turns_expected import expected
from scripts.turns_rows import marks, once_steps

TITLES = {"turns": "plain", "turns-thinking": "thinking", "turns-question": "question", "turns-agent": "sub-agent"}


def turns_problems(row: Row, outcome: Outcome) -> tuple[str, ...]:
    """What is not as expected; empty when everything is."""
    found: list[str] = []
    if outcome.exit_code != 0:
        ended = "the time limit ended it" if outcome.exit_code is None else f"exit code {outcome.exit_code}"
        found.append(ended)
    if outcome.file_hash != WANTED_HASH:
        found.append("the file is not the one asked for" if outcome.file_hash else "no file was written")
    if silent := sorted(once_steps(row) - set(outcome.steps)):
        found.append(f"the model did not come to say step {', '.join(map(str, silent))}")
    if odd := unexpected_calls(row, outcome.calls):
        found.append("calls that are " + ", ".join(odd))
    found += got_out(outcome)
    account = outcome.account
    if account is None:
        return (*found, "its calls were not counted")
    found += account.problems
    if account.flow_calls != len(outcome.calls):
        found.append(f"{account.flow_calls} calls in the saved flows, {len(outcome.calls)} in the store")
    if lost := sorted(marks(row) - set(account.printed)):
        found.append(f"{', '.join(lost)} did not reach the model")
    if not account.note and row.scenario in ("turns", "turns-thinking") and row.harness != "aider":
        found.append("the note is not what the model wrote")
    want = expected(row)
    for name, got, wanted in (
        ("calls", account.calls, want.calls),
        ("starts", account.starts, want.starts),
        ("forks", list(account.forks), list(want.forks)),
        ("traces", account.traces, want.traces),
        ("images", account.images, want.images),
    ):
        if got != wanted:
            found.append(f"{name}: {got}, expected {wanted}")
    return tuple(found)


def turns_table(rows: Sequence[Row], results: Mapping[str, Outcome | str]) -> list[list[str]]:
    """One line a row."""
    table = [
        [
            *("harness", "run", "turns", "exact", "echoes changed", "forks", "traces"),
            *("tokens = traced + excluded", "ledger", "result"),
        ]
    ]
    for row in rows:
        result = results[row.id]
        trouble = (result,) if isinstance(result, str) else turns_problems(row, result)
        cells = ["-"] * 7
        if isinstance(result, Outcome) and (account := result.account) is not None:
            sums = by_count(account.excluded) or "0"
            cells = [by_count(account.calls), str(account.exact), f"{account.echo_changed} of {account.exact}"]
            cells += [by_count(Counter(account.forks)) or "none", by_count(account.traces)]
            cells += [f"{account.sampled} = {account.traced} + {sums}", "no" if account.problems else "balances"]
        verdict = "FAILED: " + "; ".join(trouble) if trouble else "as expected"
        table.append([row.who, title(row), *cells, verdict])
    return table


def turns_notes(rows: Sequence[Row]) -> list[str]:
    """Why there are forks and more traces than agents: one line for each reason, with the rows that it holds for."""
    groups: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if row.mode != "proxy" and (why := expected(row).why):
            groups.setdefault((title(row), why), []).append(row.who)
    return [f"{', '.join(names)}, {run}: {why}" for (run, why), names in groups.items()]


def title(row: Row) -> str:
    return TITLES[row.scenario] + (", proxy" if row.mode == "proxy" else "")


def by_count(counts: Mapping[str, int]) -> str:
    """``8 main, 1 side``."""
    return ", ".join(f"{count} {name}" for name, count in counts.items())
