"""Rows of ``export.trace_row`` as a Parquet file, a row group at a time.

Rules of this module: the fields and their names are those of the JSON rows. Spans are structs with named fields, and
``metadata`` is JSON text, since a Parquet column has one type. What is held in memory is bounded by ``GROUP_TOKENS``
and the longest trace. PyArrow is an extra of Dragoman (``parquet``) and is imported only where a file is written.
"""

import json
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any

from dragoman.store.records import JsonObject

if TYPE_CHECKING:
    import pyarrow

GROUP_TOKENS = 500_000
"""Tokens after which a row group is written."""


class ParquetFile:
    """Writes rows to an open binary file. The file can be read only after ``close``, which a ``with`` block calls.

    Raises ``ImportError`` without PyArrow.
    """

    def __init__(self, file: IO[bytes]) -> None:
        from pyarrow.parquet import ParquetWriter

        self._schema = schema()
        self._writer: Any = ParquetWriter(file, self._schema, compression="zstd")
        self._rows: list[JsonObject] = []
        self._tokens = 0

    def add(self, row: JsonObject) -> None:
        """Write a row of ``export.trace_row``, now or with the next ones."""
        self._rows.append(
            {
                **row,
                "policy_spans": [_named(span, "version") for span in row["policy_spans"]],
                "temperature_spans": [_named(span, "temperature") for span in row["temperature_spans"]],
                "metadata": json.dumps(row["metadata"], separators=(",", ":"), ensure_ascii=False),
            }
        )
        self._tokens += len(row["token_ids"])
        if self._tokens >= GROUP_TOKENS:
            self._flush()

    def close(self) -> None:
        self._flush()
        self._writer.close()

    def __enter__(self) -> "ParquetFile":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _flush(self) -> None:
        import pyarrow

        if self._rows:
            self._writer.write_table(pyarrow.Table.from_pylist(self._rows, schema=self._schema))
        self._rows, self._tokens = [], 0


def schema() -> "pyarrow.Schema":
    """The columns, in the order of the fields of a row. Nullable are those that may be ``None`` in it."""
    import pyarrow as pa

    def spans(name: str, kind: Any) -> Any:
        return pa.list_(pa.struct([(name, kind), ("start", pa.int32()), ("end", pa.int32())]))

    text = pa.string()
    columns = {
        "format": pa.int32(),
        "episode": text,
        "task": text,
        "group": text,
        "end": text,
        "reward": pa.float64(),
        "kind": text,
        "thread": text,
        "calls": pa.list_(text),
        "token_ids": pa.list_(pa.int32()),
        "loss_mask": pa.list_(pa.int8()),
        "logprobs": pa.list_(pa.float32()),
        "policy_spans": spans("version", text),
        "prompt_length": pa.int32(),
        "temperature_spans": spans("temperature", pa.float64()),
        "finish_reason": text,
        "metadata": text,
    }
    may_be_none = ("task", "group", "end", "reward", "thread", "finish_reason")
    return pa.schema([pa.field(name, kind, nullable=name in may_be_none) for name, kind in columns.items()])


def _named(span: list[Any], first: str) -> JsonObject:
    return {first: span[0], "start": span[1], "end": span[2]}
