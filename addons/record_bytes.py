"""Call records as bytes and back, for the outbox. Pure.

Rules of this module: no pickle; what comes out equals what went in. Layout: ``packing.pack_text`` around the length of
a JSON object (4 bytes, little-endian), the object, and then the binary pieces (arrays and blobs) that it numbers, one
after another. Arrays are little-endian. Bytes that are not such a record are a ``ValueError``.
"""

import json
from collections.abc import Callable
from dataclasses import asdict, fields
from typing import Any

import numpy as np

from dragoman.store.packing import pack_text, unpack_text
from dragoman.store.records import Blob, CallArrival, CallOutcome, EpisodeInfo, EpisodeSpec, PolicySpan

Record = CallArrival | CallOutcome

FORMAT = 1
_ARRAYS = {"prompt_ids": "<i4", "completion_ids": "<i4", "logprobs": "<f4"}
_BLOBS = ("tools", "reply")


def record_size(record: Record) -> int:
    """About how many bytes a record takes in memory: what its arrays and blobs hold, and a kilobyte for the rest."""
    if isinstance(record, CallArrival):
        return 1024
    arrays = (record.prompt_ids, record.completion_ids, record.logprobs)
    blobs = (*record.messages, record.tools, record.reply)
    return (
        1024
        + sum(array.nbytes for array in arrays if array is not None)
        + sum(len(blob.data) for blob in blobs if blob is not None)
    )


def encode_record(record: Record) -> bytes:
    """Raises ``ValueError`` for a value that JSON cannot hold; ``store.call_rows`` finds the other wrong ones."""
    pieces: list[bytes] = []
    values = {one.name: getattr(record, one.name) for one in fields(record)}
    if isinstance(record, CallOutcome):
        for name, dtype in _ARRAYS.items():
            if values[name] is not None:
                values[name] = _put(pieces, np.asarray(values[name]).astype(dtype).tobytes())
        for name in _BLOBS:
            if values[name] is not None:
                values[name] = _put_blob(pieces, values[name])
        values["messages"] = [_put_blob(pieces, blob) for blob in record.messages]
        values["policy_spans"] = [[span.version, span.start, span.end] for span in record.policy_spans]
    what = "arrival" if isinstance(record, CallArrival) else "outcome"
    header = {"format": FORMAT, "record": what, "lengths": [len(piece) for piece in pieces], "values": values}
    try:
        text = json.dumps(header, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError) as error:
        raise ValueError(f"call {record.id!r} cannot be written down: {error}") from error
    return pack_text(b"".join((len(text).to_bytes(4, "little"), text, *pieces)))


def decode_record(data: bytes) -> Record:
    """The record of ``encode_record``. Raises ``ValueError``."""
    plain = unpack_text(data)
    start = 4 + int.from_bytes(plain[:4], "little")
    try:
        header = json.loads(plain[4:start])
        if header["format"] != FORMAT:
            raise ValueError(f"it has format {header['format']!r}; this Dragoman reads {FORMAT}")
        values: dict[str, Any] = header["values"]
        pieces: list[bytes] = []
        for length in header["lengths"]:
            pieces.append(plain[start : start + length])
            start += length
        if header["record"] == "arrival":
            return CallArrival(**values)
        return CallOutcome(**_outcome_values(values, pieces.__getitem__))
    except (KeyError, IndexError, TypeError, AttributeError, UnicodeDecodeError) as error:
        raise ValueError(f"this is no record of a call: {error!r}") from error


def _outcome_values(values: dict[str, Any], piece: Callable[[int], bytes]) -> dict[str, Any]:
    for name, dtype in _ARRAYS.items():
        if values[name] is not None:
            values[name] = np.frombuffer(piece(values[name]), dtype).astype(dtype[1:])
    for name in _BLOBS:
        if values[name] is not None:
            values[name] = Blob(bytes.fromhex(values[name][0]), piece(values[name][1]))
    values["messages"] = tuple(Blob(bytes.fromhex(digest), piece(at)) for digest, at in values["messages"])
    values["policy_spans"] = tuple(PolicySpan(*span) for span in values["policy_spans"])
    return values


def encode_episode(episode: EpisodeInfo) -> str:
    return json.dumps(asdict(episode))


def decode_episode(text: str) -> EpisodeInfo:
    """Raises ``ValueError`` for what is no ``encode_episode``, or that of another version of Dragoman."""
    try:
        values = json.loads(text)
        return EpisodeInfo(**{**values, "spec": EpisodeSpec(**values["spec"])})
    except (KeyError, TypeError) as error:
        raise ValueError(f"this is no episode: {error!r}") from error


def _put(pieces: list[bytes], data: bytes) -> int:
    pieces.append(data)
    return len(pieces) - 1


def _put_blob(pieces: list[bytes], blob: Blob) -> list[Any]:
    return [blob.digest.hex(), _put(pieces, blob.data)]
