"""Reading one task out of a JSON-like object, with every mistake in it and its place.

Rules of this module: what is wrong is noted and reading goes on; nothing is guessed. Unknown fields are mistakes: a
misspelt ``time_limit`` must not be silence. Paths are relative to the task file's folder.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError

from dragoman.rollout.tasks import (
    ArchiveWorkspace,
    Check,
    CommandCheck,
    EqualCheck,
    FilesWorkspace,
    FileTree,
    FolderWorkspace,
    FunctionCheck,
    GitWorkspace,
    JudgeCheck,
    RegexCheck,
    SchemaCheck,
    Task,
    TestsCheck,
    Workspace,
)

__all__ = ["Mistake", "Place", "inner_path", "read_task", "read_tree"]

Place = tuple[str | int, ...]
"""Keys and indices from the task down to what is meant."""
TEST_FILE = re.compile(r"(test_[^/]*|[^/]*_test)\.py")
KINDS = ("command", "pytest", "unittest", "equal", "json_schema", "regex", "function", "judge")
WORKSPACES = ("folder", "git", "archive", "files")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class Mistake:
    place: Place
    says: str


@dataclass
class _Fields:
    """The fields of one object; what was not asked for by the end is unknown."""

    value: dict[str, Any]
    place: Place
    mistakes: list[Mistake]
    asked: set[str] = field(default_factory=set)

    def wrong(self, name: str, says: str) -> None:
        self.mistakes.append(Mistake((*self.place, name) if name in self.value else self.place, says))

    def raw(self, name: str) -> Any:
        self.asked.add(name)
        return self.value.get(name)

    def text(self, name: str, *, needed: bool = False) -> str | None:
        value = self.raw(name)
        if value is None:
            if needed:
                self.wrong(name, f"{name!r} is missing")
            return None
        if not isinstance(value, str) or not value.strip() or "\0" in value:
            self.wrong(name, f"{name!r} must be a text that is not empty, not {value!r}")
            return None
        return value

    def number(self, name: str, default: float | None = None, *, positive: bool = True) -> float | None:
        value = self.raw(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e12:
            self.wrong(name, f"{name!r} must be a number, not {value!r}")
        elif positive and value <= 0:
            self.wrong(name, f"{name!r} must be above 0, not {value!r}")
        else:
            return float(value)
        return default

    def flag(self, name: str, default: bool) -> bool:
        value = self.raw(name)
        if value is not None and not isinstance(value, bool):
            self.wrong(name, f"{name!r} must be true or false, not {value!r}")
        return value if isinstance(value, bool) else default

    def choice(self, name: str, choices: Iterable[str], default: str | None = None) -> str | None:
        value, known = self.raw(name), tuple(choices)
        if value is None and default is not None:
            return default
        if value not in known:
            given = "is missing" if value is None else f"cannot be {value!r}"
            self.wrong(name, f"{name!r} {given}; it is one of: {', '.join(known)}")
            return default
        return str(value)

    def object(self, name: str) -> dict[str, Any]:
        value = self.raw(name)
        if value is not None and (not isinstance(value, dict) or not all(isinstance(key, str) for key in value)):
            self.wrong(name, f"{name!r} must be an object, not {value!r}")
        return value if isinstance(value, dict) else {}

    def inner(self, name: str) -> str | None:
        """A path inside the workspace."""
        path = self.text(name, needed=True)
        if path is not None and (why := inner_path(path)):
            self.wrong(name, f"{name!r}: {why}")
            return None
        return path

    def tree(self, name: str, base: Path) -> FileTree:
        value = self.raw(name)
        if value is None:
            return ()
        try:
            return read_tree(value, base)
        except (ValueError, OSError) as error:
            self.wrong(name, f"{name!r}: {error}")
            return ()

    def close(self) -> None:
        for name in sorted(set(self.value) - self.asked, key=str):
            self.wrong(name, f"unknown field {name!r}; known here: {', '.join(sorted(self.asked))}")


def read_task(value: object, source: Path, mistakes: list[Mistake]) -> Task | None:
    """The task that ``value`` (JSON or YAML) describes. None: it has mistakes, which are added to ``mistakes``."""
    before = len(mistakes)
    if not isinstance(value, dict):
        mistakes.append(Mistake((), f"a task is an object, not {value!r:.80}"))
        return None
    fields = _Fields(value, (), mistakes)
    id_ = fields.text("id", needed=True)
    if id_ is not None and (not NAME.fullmatch(id_) or len(id_) > 120):
        fields.wrong("id", f"'id' must be at most 120 letters, digits, '.', '_' or '-', not {id_!r}")
    prompt = fields.text("prompt", needed=True)
    workspace = _workspace(fields, source.parent)
    checks = _checks(fields, source.parent)
    task = Task(
        id=id_ or "",
        prompt=prompt or "",
        workspace=workspace,
        setup=fields.text("setup"),
        checks=checks,
        time_limit=fields.number("time_limit"),
        split=fields.text("split"),
        metadata=fields.object("metadata"),
        source=source,
    )
    fields.close()
    return task if len(mistakes) == before else None


def inner_path(path: str) -> str | None:
    """Why a path does not name a file inside a workspace; None: it does."""
    pure = PurePosixPath(path)
    if pure.is_absolute() or ".." in pure.parts or not pure.parts or "\0" in path or "\\" in path:
        return f"{path!r} is no relative path that stays in the workspace"
    if pure.parts[0] == ".git":
        return f"{path!r} is in .git, which is not part of the workspace's copy"
    return None


def read_tree(value: object, base: Path) -> FileTree:
    """The files of a check: a folder or a file by its path, or an object of paths and texts.

    A folder's files lie in the workspace as they lie in the folder. Raises ``ValueError`` and ``OSError``.
    """
    if isinstance(value, dict):
        for path, text in value.items():
            if not isinstance(path, str) or not isinstance(text, str):
                raise ValueError(f"paths and contents must be texts, not {path!r}: {text!r:.40}")
            if why := inner_path(path):
                raise ValueError(why)
        return tuple(sorted((str(PurePosixPath(path)), text.encode()) for path, text in value.items()))
    if not isinstance(value, str) or not value:
        raise ValueError(f"it must be a path, or an object of paths and contents, not {value!r:.80}")
    found = base / value
    if found.is_file():
        return ((found.name, found.read_bytes()),)
    if not found.is_dir():
        raise ValueError(f"there is no {found}")
    inside = [path for path in sorted(found.rglob("*")) if path.is_file() and "__pycache__" not in path.parts]
    if not inside:
        raise ValueError(f"{found} holds no files")
    return tuple((path.relative_to(found).as_posix(), path.read_bytes()) for path in inside)


def _workspace(fields: _Fields, base: Path) -> Workspace:
    value = fields.object("workspace")
    if not value:
        return FilesWorkspace()
    inside = _Fields(value, (*fields.place, "workspace"), fields.mistakes)
    kinds = [name for name in WORKSPACES if name in value]
    if len(kinds) != 1:
        there = " and ".join(kinds) if kinds else "none"
        fields.wrong("workspace", f"a workspace is exactly one of {', '.join(WORKSPACES)}; there is {there}")
        return FilesWorkspace()
    workspace: Workspace = FilesWorkspace()
    match kinds[0]:
        case "folder":
            folder = base / (inside.text("folder") or ".")
            if not folder.is_dir():
                inside.wrong("folder", f"there is no folder {folder}")
            workspace = FolderWorkspace(folder)
        case "archive":
            archive = base / (inside.text("archive") or ".")
            if not archive.is_file():
                inside.wrong("archive", f"there is no file {archive}")
            workspace = ArchiveWorkspace(archive)
        case "git":
            repository, commit = inside.text("git") or "", inside.text("commit", needed=True) or ""
            if repository.startswith("-") or commit.startswith("-"):
                inside.wrong("git", "a repository or commit does not begin with '-'")
            local = base / repository
            workspace = GitWorkspace(str(local) if local.is_dir() else repository, commit)
        case _:
            workspace = FilesWorkspace(inside.tree("files", base))
    inside.close()
    return workspace


def _checks(fields: _Fields, base: Path) -> tuple[Check, ...]:
    value = fields.raw("checks")
    if value is None:
        return ()
    if not isinstance(value, list):
        fields.wrong("checks", f"'checks' must be a list, not {value!r:.80}")
        return ()
    found: list[Check] = []
    for at, one in enumerate(value):
        place = (*fields.place, "checks", at)
        if not isinstance(one, dict):
            fields.mistakes.append(Mistake(place, f"a check is an object, not {one!r:.80}"))
            continue
        check = _check(_Fields(one, place, fields.mistakes), base)
        if check is None:
            continue
        if check.name in {other.name for other in found}:
            says = f"there is another check named {check.name!r}: give each a 'name' of its own"
            fields.mistakes.append(Mistake(place, says))
        found.append(check)
    if found and not any(check.weight > 0 for check in found):
        fields.wrong("checks", "no check has a weight above 0, so no work can be worth anything")
    return tuple(found)


def _check(fields: _Fields, base: Path) -> Check | None:
    kind = fields.choice("kind", KINDS)
    if kind is None:
        return None
    name = fields.text("name") or kind
    if not NAME.fullmatch(name):
        fields.wrong("name", f"'name' must be letters, digits, '.', '_' or '-', not {name!r}")
    weight = fields.number("weight", 1.0, positive=False)
    common: Any = {"name": name, "weight": weight, "time_limit": fields.number("time_limit")}
    check: Check
    match kind:
        case "command":
            run = fields.text("run", needed=True) or ""
            check = CommandCheck(**common, run=run, files=fields.tree("files", base))
        case "pytest" | "unittest":
            check = _tests(fields, kind, common, base)
        case "equal":
            given = fields.raw("to")
            if not isinstance(given, str):
                fields.wrong("to", "'to' must be the text that the file should have")
            content = given.encode() if isinstance(given, str) else b""
            path, strip = fields.inner("path") or "", fields.flag("strip", True)
            check = EqualCheck(**common, path=path, content=content, strip=strip)
        case "json_schema":
            schema = fields.object("schema")
            try:
                Draft202012Validator.check_schema(schema)
            except SchemaError as error:
                fields.wrong("schema", f"'schema' is no JSON schema: {error.message}")
            check = SchemaCheck(**common, path=fields.inner("path") or "", schema=schema)
        case "regex":
            check = _regex(fields, common)
        case "function":
            function = fields.text("function", needed=True) or ""
            if function and not re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", function):
                fields.wrong("function", f"'function' must be module:function, not {function!r}")
            check = FunctionCheck(**common, function=function, folder=base)
        case _:
            url, model = fields.text("url", needed=True) or "", fields.text("model", needed=True) or ""
            if url and not url.startswith(("http://", "https://")):
                fields.wrong("url", f"'url' must begin with http:// or https://, not {url!r}")
            rubric, key_env = fields.text("rubric", needed=True) or "", fields.text("key_env")
            check = JudgeCheck(**common, url=url, model=model, rubric=rubric, key_env=key_env)
    fields.close()
    return check


def _tests(fields: _Fields, kind: str, common: Any, base: Path) -> TestsCheck:
    files = fields.tree("files", base)
    paths = fields.raw("paths")
    if paths is None:
        paths = [path for path, _ in files if TEST_FILE.fullmatch(PurePosixPath(path).name)]
    if not isinstance(paths, list) or not paths or not all(isinstance(path, str) for path in paths):
        fields.wrong("paths", "there are no test files: name them in 'paths', or put test_*.py into 'files'")
        paths = []
    there = {path for path, _ in files}
    for path in paths:
        if path not in there:
            fields.wrong("paths", f"{path!r} is not among the check's 'files': an agent could have written it")
    score: Any = fields.choice("score", ("all", "fraction"), "all")
    framework: Any = kind
    python = fields.text("python")
    return TestsCheck(**common, framework=framework, files=files, paths=tuple(paths), score=score, python=python)


def _regex(fields: _Fields, common: Any) -> RegexCheck:
    pattern = fields.text("pattern", needed=True) or ""
    try:
        re.compile(pattern)
    except re.error as error:
        fields.wrong("pattern", f"'pattern' is no regular expression: {error}")
    where: Any = fields.choice("in", ("file", "output", "reply"), "output")
    path = fields.inner("path") if where == "file" else fields.raw("path")
    if where != "file" and path is not None:
        fields.wrong("path", f"'path' means nothing with in: {where}")
    return RegexCheck(**common, pattern=pattern, where=where, path=path, absent=fields.flag("absent", False))
