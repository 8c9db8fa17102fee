"""The table of cases: each has a script that the scripted engine reads, and that comes to an end."""

import pytest

from dragoman.rollout.probe.cases import CASES, DONE, PROMPT, SUB_DONE, SUB_TASK, Case, cases_for, mark, steps
from dragoman.rollout.probe.tools import AgentTool, OfferedTool, ShellTool
from dragoman.rollout.script import Step, read_script

STRING = {"type": "string"}
SHELL = ShellTool(
    OfferedTool("bash", "", {"type": "object", "properties": {"command": STRING}, "required": ["command"]}),
    "command",
    "text",
)
AGENT = AgentTool(
    OfferedTool("task", "", {"type": "object", "properties": {"prompt": STRING}, "required": ["prompt"]}), "prompt"
)
TOOLS = '{"name": "bash"} {"name": "task"} ' + PROMPT


def _play(case: Case, *prompts: str, shell: ShellTool | None = SHELL) -> list[Step]:
    script = read_script(steps(case, shell, AGENT, PROMPT))
    chosen = [script.choose(prompt) for prompt in prompts]
    return [script.steps[number] for number in chosen if number is not None]


def _case(name: str) -> Case:
    return next(case for case in CASES if case.name == name)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_script_is_one_and_has_an_answer_to_every_request(case: Case) -> None:
    ran = f"{TOOLS} {mark(42)}"
    asked = [TOOLS, TOOLS, TOOLS, ran, ran, f"{ran} {mark(43)}", "no tools", "no tools"]

    assert len(_play(case, *asked)) == len(asked)


@pytest.mark.parametrize("case", [case for case in CASES if case.name != "empty"], ids=lambda case: case.name)
def test_every_script_ends_whatever_the_harness_makes_of_it(case: Case) -> None:
    assert _play(case, *[TOOLS] * 5)[-1].text == DONE


def test_two_calls_come_behind_the_first_ones_output_and_then_the_end() -> None:
    one, two, end = _play(_case("tools"), TOOLS, f"{TOOLS} {mark(42)}", f"{TOOLS} {mark(42)} {mark(43)} {mark(44)}")

    assert (len(one.tool_calls), len(two.tool_calls), end.text) == (1, 2, DONE)
    assert one.reasoning
    assert "ran-" + "42" not in str(one.tool_calls)  # only the output has it


def test_a_sub_agents_request_is_told_from_its_starters() -> None:
    start, theirs, end = _play(_case("subagent"), TOOLS, SUB_TASK, f"{TOOLS} {SUB_TASK} {SUB_DONE}")

    assert [call["name"] for call in start.tool_calls] == ["task"]
    assert (theirs.text, end.text) == (SUB_DONE, DONE)


def test_its_starter_is_known_by_whatever_it_was_asked() -> None:
    script = read_script(steps(_case("subagent"), SHELL, AGENT, "another prompt"))

    assert script.steps[script.choose(f"{SUB_TASK} another prompt") or 0].text != SUB_DONE


@pytest.mark.parametrize("name", ["broken-json", "wrong-args", "unknown-tool", "cut-call"])
def test_a_defect_comes_once_and_then_the_model_does_it_right(name: str) -> None:
    bad, good = _play(_case(name), TOOLS, TOOLS)

    assert bad.raw is not None or bad.tool_calls != good.tool_calls
    assert [call["name"] for call in good.tool_calls] == ["bash"]


def test_without_a_shell_the_model_talks() -> None:
    assert [step.text for step in _play(_case("error-500"), PROMPT, PROMPT, shell=None)] == [DONE, DONE]
    names = [case.name for case in cases_for(None, None, first=True, long=False)]

    assert names == ["empty", "cut-text", "error-500", "error-429", "stream-failure", "silence"]


def test_which_cases_are_tried() -> None:
    def names(*, first: bool = True, long: bool = False) -> list[str]:
        return [case.name for case in cases_for(SHELL, AGENT, first=first, long=long)]

    assert [case.name for case in CASES][1:] == names(long=True)
    assert set(names(long=True)) - set(names()) == {"long-silence", "no-headers"}
    assert names(first=False) == ["tools"]
    assert "subagent" not in [case.name for case in cases_for(SHELL, None, first=True, long=False)]
    only = cases_for(SHELL, AGENT, first=True, long=False, only=("no-headers", "tools"))
    assert [case.name for case in only] == ["tools", "no-headers"]
