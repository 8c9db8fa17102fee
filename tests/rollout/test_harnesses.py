"""The table of harnesses: complete, exact, and in agreement with what the gateway reads from their requests."""

import pytest

from dragoman.addons.identity import read_harness
from dragoman.rollout.harnesses import COMMAND, HARNESSES, Harness, find_harness, sign_of_failure

EMPTY = "[ERROR] The model returned an empty response"
EACH = pytest.mark.parametrize("harness", HARNESSES, ids=lambda harness: harness.name)


def test_an_unknown_harness_is_told_the_names_there_are() -> None:
    with pytest.raises(ValueError, match="no harness 'pip'; there are: pi, claude"):
        find_harness("pip")


def test_versions_are_exact() -> None:
    assert all(harness.version.replace(".", "").isdigit() for harness in HARNESSES)


@EACH
def test_there_is_a_dialect_for_each_variant(harness: Harness) -> None:
    assert len(harness.dialects) == max(len(harness.variants), 1)


@EACH
def test_the_gateway_reads_the_session_and_the_sub_agent_where_the_table_says(harness: Harness) -> None:
    if harness.session_header is not None:
        assert read_harness({harness.session_header: "s1"}).thread == "s1"
    if harness.subagent_header is not None:
        assert read_harness({harness.subagent_header: "s2"}).kind == "subagent"


def test_the_generic_harness_is_no_entry() -> None:
    with pytest.raises(ValueError, match="no harness 'command'"):
        find_harness(COMMAND)


@pytest.mark.parametrize(
    ("name", "output", "sign"),
    [
        # As they were printed after empty replies (rows `empty` of make e2e-harnesses DEFECTS=1).
        ("mini", "without any other command.\n\nExit:\nRepeatedFormatError\nSaved trajectory", "RepeatedFormatError"),
        ("mini", "Exit:\n\nSaved trajectory to 'x'\n", None),
        ("gemini", f"\n{EMPTY} with no text", EMPTY),
        ("claude", "Exit:\nRepeatedFormatError\n", None),
    ],
)
def test_what_says_that_a_run_with_exit_code_0_failed(name: str, output: str, sign: str | None) -> None:
    assert sign_of_failure(find_harness(name), output) == sign
