"""Writes ``docs/store.md`` from the models: ``python -m scripts.store_page``.

What a column means is read from the docstring below it in ``store/models.py``, or below the field of its name in
``store/records.py``; ``store_notes`` has what neither says. A test keeps the page current.
"""

import ast
import re
from pathlib import Path

from sqlalchemy import Column, Table

from dragoman.store import export, models, records, schema
from dragoman.store.packing import DIGEST_LENGTH, FORMAT, LEVEL
from scripts.store_notes import ABOUT, NOTES, NULLS

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "store.md"
PARTS = Path(__file__).parent / "store_page.md"
"""The prose around the tables, with marks in braces."""

RECORDS = {
    "groups": ("EpisodeSpec",),
    "episodes": ("EpisodeInfo", "EpisodeSpec"),
    "artefacts": ("Artefact", "ArtefactInfo"),
    "calls": ("CallArrival", "CallOutcome"),
}
"""Table → the records whose fields are its columns."""

TYPES = {
    "BigInteger": "integer",
    "Boolean": "boolean",
    "Double": "float64",
    "Integer": "integer",
    "JSON": "JSON",
    "LargeBinary": "bytes",
    "Text": "text",
}


def page() -> str:
    """The whole page."""
    tables = "\n\n".join(_table(table) for table in models.Base.metadata.sorted_tables)
    text = PARTS.read_text()
    values = {
        "tables": tables,
        "head": schema.HEAD,
        "format": FORMAT,
        "level": LEVEL,
        "digest": DIGEST_LENGTH,
        "export": export.FORMAT,
    }
    for name, value in values.items():
        text = text.replace("{" + name + "}", str(value))
    return text


def undocumented() -> list[str]:
    """Columns of which nothing is said."""
    return [
        f"{table.name}.{column.name}"
        for table in models.Base.metadata.sorted_tables
        for column in table.columns
        if not _said(table, column)
    ]


def unused() -> list[str]:
    """Notes about columns that are not there."""
    known = {f"{table.name}.{column.name}" for table in models.Base.metadata.sorted_tables for column in table.columns}
    return sorted(set(NOTES) - known - {"*.row"})


def _table(table: Table) -> str:
    lines = [
        f"### {table.name}",
        "",
        _about(table),
        "",
        "| column | type | null means | meaning |",
        "|---|---|---|---|",
    ]
    for column in table.columns:
        kind = TYPES[type(column.type).__name__]
        if column.primary_key:
            kind += ", primary key"
        for key in column.foreign_keys:
            kind += f" → {key.target_fullname}"
        meaning, _, null = _said(table, column).partition("None: ")
        if column.nullable:
            null = null.rstrip(".") or NULLS.get(table.name, NULLS["*"])
        lines.append(f"| {column.name} | {kind} | {null if column.nullable else ''} | {meaning.strip()} |")
    return "\n".join(lines)


def _about(table: Table) -> str:
    if table.name in ABOUT:
        return ABOUT[table.name]
    docs = _docs(models.__file__)
    return next(_plain(docs[name][""]) for name, of in docs.items() if of.get("__tablename__") == table.name)


def _said(table: Table, column: "Column[object]") -> str:
    """What is said of a column; what null means comes last, behind ``None:``."""
    for key in (f"{table.name}.{column.name}", f"*.{column.name}"):
        if key in NOTES:
            return NOTES[key]
    docs = _docs(models.__file__)
    model = next(of for of in docs.values() if of.get("__tablename__") == table.name)
    found = model.get(column.name)
    if found is None:
        of_records = _docs(records.__file__)
        found = next(
            (of_records[n][column.name] for n in RECORDS.get(table.name, ()) if column.name in of_records[n]), ""
        )
    if not found and (reference := next(iter(column.foreign_keys), None)) is not None:
        found = f"Its row in {reference.column.table.name}."
    plain = _plain(found)
    null = re.search(r"`(?:None|NULL)`: ([^.;]*)[.;]?", plain)
    if null is None:
        return plain
    return f"{plain[: null.start()].rstrip(' ;')} {plain[null.end() :].strip()}".strip() + f" None: {null[1]}"


def _docs(file: str | None) -> dict[str, dict[str, str]]:
    """Class → name → the docstring below that name; ``""``: the class's own; ``__tablename__``: the table's name."""
    assert file is not None
    found: dict[str, dict[str, str]] = {}
    for node in ast.parse(Path(file).read_text()).body:
        if not isinstance(node, ast.ClassDef):
            continue
        of_class = found.setdefault(node.name, {"": ast.get_docstring(node) or ""})
        for line, below in zip(node.body, [*node.body[1:], None], strict=True):
            match line, below:
                case ast.Assign(targets=[ast.Name(id="__tablename__")], value=ast.Constant(value=str(name))), _:
                    of_class["__tablename__"] = name
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(doc))):
                    of_class[name] = doc
    return found


def _plain(text: str) -> str:
    """A docstring as one line of Markdown."""
    return re.sub(r"\s+", " ", text).replace("``", "`").replace("|", "\\|").strip()


if __name__ == "__main__":
    PAGE.write_text(page())
    print(f"written: {PAGE.relative_to(ROOT)}")
