"""Task files: both forms say the same, and every mistake is told at once with its line."""

import json
from pathlib import Path

import pytest

from dragoman.rollout.task_files import TaskFileError, read_tasks
from dragoman.rollout.tasks import (
    ArchiveWorkspace,
    CommandCheck,
    EqualCheck,
    FilesWorkspace,
    FolderWorkspace,
    FunctionCheck,
    GitWorkspace,
    JudgeCheck,
    RegexCheck,
    SchemaCheck,
    TestsCheck,
)

YAML = """\
- id: one
  prompt: |
    Do it.
  workspace: {folder: repo}
  setup: make
  time_limit: 60
  split: train
  metadata: {level: 3}
  checks:
    - {kind: pytest, files: hidden, score: fraction, weight: 2}
    - {kind: unittest, files: {test_a.py: "x"}, python: python3.12}
    - {kind: command, run: make test, files: {Makefile: "test:"}, time_limit: 5}
    - {kind: equal, path: out.txt, to: "7", strip: false}
    - {kind: json_schema, path: out.json, schema: {type: object}}
    - {kind: regex, pattern: "^ok", in: reply, name: polite, absent: true, weight: -0.5}
    - {kind: function, function: "judges:look"}
    - {kind: judge, url: "http://127.0.0.1:1/v1", model: m, rubric: "Is it good?", key_env: KEY}
- {id: two, prompt: x, workspace: {git: repo, commit: abc}}
- {id: three, prompt: x, workspace: {archive: a.tar}, split: test}
- {id: four, prompt: x, workspace: {files: {a/b.txt: c}}}
- {id: five, prompt: x}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in (("repo/a.py", "a"), ("hidden/tests/test_x.py", "t"), ("hidden/data.txt", "d"), ("a.tar", "")):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def _write(folder: Path, text: str, name: str = "tasks.yaml") -> Path:
    (folder / name).write_text(text)
    return folder / name


def _mistakes(folder: Path, text: str, name: str = "tasks.yaml") -> list[tuple[int, str]]:
    with pytest.raises(TaskFileError) as caught:
        read_tasks(_write(folder, text, name))
    assert all(f"{name}:{line}: {says}" in str(caught.value) for line, says in caught.value.mistakes)
    return caught.value.mistakes


def test_everything_that_a_task_may_say(folder: Path) -> None:
    one, two, three, four, five = read_tasks(_write(folder, YAML))
    assert (one.prompt, one.setup, one.time_limit, one.split, one.metadata) == (
        "Do it.\n",
        "make",
        60,
        "train",
        {"level": 3},
    )
    assert one.workspace == FolderWorkspace(folder / "repo")
    assert two.workspace == GitWorkspace(str(folder / "repo"), "abc")
    assert three.workspace == ArchiveWorkspace(folder / "a.tar")
    assert four.workspace == FilesWorkspace((("a/b.txt", b"c"),))
    assert (five.workspace, five.checks, five.time_limit) == (FilesWorkspace(), (), None)
    pytest_, unittest, command, equal, schema, regex, function, judge = one.checks
    files = (("data.txt", b"d"), ("tests/test_x.py", b"t"))
    assert pytest_ == TestsCheck(
        name="pytest", weight=2, framework="pytest", files=files, paths=("tests/test_x.py",), score="fraction"
    )
    assert isinstance(unittest, TestsCheck)
    assert (unittest.paths, unittest.score, unittest.python) == (("test_a.py",), "all", "python3.12")
    makefile = (("Makefile", b"test:"),)
    assert command == CommandCheck(name="command", time_limit=5, run="make test", files=makefile)
    assert equal == EqualCheck(name="equal", path="out.txt", content=b"7", strip=False)
    assert schema == SchemaCheck(name="json_schema", path="out.json", schema={"type": "object"})
    assert regex == RegexCheck(name="polite", weight=-0.5, pattern="^ok", where="reply", absent=True)
    assert function == FunctionCheck(name="function", function="judges:look", folder=folder)
    assert isinstance(judge, JudgeCheck)
    assert (judge.url, judge.model, judge.key_env) == ("http://127.0.0.1:1/v1", "m", "KEY")


def test_json_lines_say_the_same(folder: Path) -> None:
    import yaml

    lines = "\n\n".join(json.dumps(task) for task in yaml.safe_load(YAML))
    from dataclasses import replace

    other = read_tasks(_write(folder, lines, "tasks.jsonl"))
    assert [replace(task, source=None) for task in other] == [
        replace(task, source=None) for task in read_tasks(_write(folder, YAML))
    ]


def test_splits(folder: Path) -> None:
    path = _write(folder, YAML)
    assert [task.id for task in read_tasks(path, split="test")] == ["three"]
    with pytest.raises(TaskFileError, match="no task has the split 'eval'; splits in it: test, train"):
        read_tasks(path, split="eval")


def test_all_mistakes_at_once_each_with_its_line(folder: Path) -> None:
    text = """\
- id: a
  prompt: hi
  workspace: {folder: nope}
  checks:
    - kind: regex
      pattern: "("
      wieght: 2
    - kind: pytest
      files: {x.py: "a"}
- id: b b
  promt: x
- id: a
  prompt: again
- prompt: ok
  id: c
  workspace: {files: {"../x": "y"}}
  time_limit: -1
- just text
- id: d
  prompt: x
  checks: [{kind: command, run: a}, {kind: command, run: b}, {kind: nose}]
- id: e
  prompt: x
  checks: [{kind: command, run: a, weight: -1}]
- id: f
  prompt: x
  workspace: {folder: repo, git: repo}
- id: g
  prompt: x
  checks: [{kind: unittest, files: {test_a.py: ""}, paths: [tests/test_b.py]}]
"""
    found = _mistakes(folder, text)
    for line, says in [
        (3, "task 'a': workspace: there is no folder"),
        (6, "task 'a': check 1: 'pattern' is no regular expression"),
        (7, "task 'a': check 1: unknown field 'wieght'; known here: absent, in, kind"),
        (8, "task 'a': check 2: there are no test files"),
        (10, "'id' must be at most 120 letters"),
        (10, "task 'b b': 'prompt' is missing"),
        (11, "unknown field 'promt'"),
        (16, "'../x' is no relative path that stays in the workspace"),
        (17, "'time_limit' must be above 0, not -1"),
        (18, "a task is an object, not 'just text'"),
        (21, "there is another check named 'command'"),
        (21, "'kind' cannot be 'nose'; it is one of: command, pytest"),
        (24, "no check has a weight above 0"),
        (27, "a workspace is exactly one of folder, git, archive, files; there is folder and git"),
        (30, "'tests/test_b.py' is not among the check's 'files': an agent could have written it"),
    ]:
        assert any(at == line and says in said for at, said in found), (line, says, found)
    assert len(found) == 15, found


def test_a_task_may_be_there_only_once(folder: Path) -> None:
    text = "- {id: a, prompt: x}\n- {id: a, prompt: y}\n"
    assert _mistakes(folder, text) == [(2, "task 'a' is there already, in line 1")]


@pytest.mark.parametrize(
    ("name", "text", "line", "says"),
    [
        ("tasks.jsonl", '{"id": "a", "prompt": "x"}\n{"id": }', 2, "it is no JSON"),
        ("tasks.jsonl", '{"id": "a", "id": "b", "prompt": "x"}', 1, "'id' is there twice"),
        ("tasks.yaml", "- id: a\n  id: b\n  prompt: x", 2, "'id' is there twice"),
        ("tasks.yaml", "- id: a\n  prompt: [x", 2, "it is no YAML"),
        ("tasks.yaml", "id: a", 1, "it is no list of tasks"),
        ("tasks.yaml", "", 1, "it is no list of tasks"),
        ("tasks.jsonl", "\n", 1, "there are no tasks in it"),
        ("tasks.txt", "x", 1, "a task file is .jsonl, .yaml or .yml, not .txt"),
    ],
)
def test_files_that_are_none(folder: Path, name: str, text: str, line: int, says: str) -> None:
    ((at, said),) = _mistakes(folder, text, name)
    assert (at, says in said) == (line, True), said


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(TaskFileError, match="it cannot be read"):
        read_tasks(tmp_path / "no.yaml")


def test_files_of_checks_are_held_from_the_start(folder: Path) -> None:
    """What becomes of them on the disk while agents run changes nothing."""
    (task, *_) = read_tasks(_write(folder, YAML))
    (folder / "hidden" / "tests" / "test_x.py").write_text("def test(): pass")
    (check, *_) = task.checks
    assert isinstance(check, TestsCheck)
    assert dict(check.files)["tests/test_x.py"] == b"t"
