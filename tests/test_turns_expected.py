"""The table of what is expected holds together."""

import pytest

from scripts.harness_rows import Row
from scripts.turns_expected import expected
from scripts.turns_rows import once_steps, turns_rows

ROWS = list(turns_rows())


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_every_step_is_a_call_and_every_trace_beyond_the_first_has_a_reason(row: Row) -> None:
    want = expected(row)
    trained = {kind: count for kind, count in want.calls.items() if kind in ("main", "subagent")}

    assert sum(trained.values()) == len(once_steps(row))
    assert want.traces.keys() == trained.keys()
    agents = 2 if row.scenario == "turns-agent" else 1
    if want.forks or sum(want.traces.values()) > agents:
        assert want.why
    assert sum(want.traces.values()) >= want.starts + len(want.forks)


def test_most_runs_are_one_trace_whatever_the_template() -> None:
    plain = {row.who for row in ROWS if row.scenario == "turns" and expected(row).traces == {"main": 1}}
    thinking = {row.who for row in ROWS if row.scenario == "turns-thinking" and expected(row).traces == {"main": 1}}

    assert plain - thinking == {"opencode chat"}
    assert {row.who for row in ROWS} - plain == {"claude", "gemini", "mini", "aider"}
