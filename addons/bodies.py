"""Request bodies: decompress within a limit, and read one JSON object. Pure."""

import zlib

import orjson
import zstandard

from dragoman.addons.errors import InvalidRequest, TooLarge
from dragoman.store.records import JsonObject


def decode_body(raw: bytes, encoding: str | None, limit: int) -> bytes:
    """Undo ``Content-Encoding`` (``gzip``, ``deflate``, ``zstd``; ``None`` or ``identity``: as it is).

    Raises ``TooLarge`` when more than ``limit`` bytes come out (so a zip bomb stops early), ``InvalidRequest`` for an
    unknown encoding or damaged data.
    """
    name = (encoding or "identity").strip().lower()
    try:
        match name:
            case "identity":
                body = raw
            case "gzip" | "x-gzip":
                body = _inflate(raw, zlib.MAX_WBITS | 16, limit)
            case "deflate":
                body = _inflate(raw, zlib.MAX_WBITS, limit)
            case "zstd":
                with zstandard.ZstdDecompressor().stream_reader(raw) as reader:
                    body = reader.read(limit + 1)
            case _:
                raise InvalidRequest(f"unsupported Content-Encoding {encoding!r}; send gzip, deflate, zstd or none")
    except (zlib.error, zstandard.ZstdError) as error:
        raise InvalidRequest(f"the body is not valid {name} data: {error}") from error
    if len(body) > limit:
        raise TooLarge(f"the request body is larger than {limit} bytes")
    return body


def _inflate(raw: bytes, wbits: int, limit: int) -> bytes:
    inflate = zlib.decompressobj(wbits=wbits)
    body = inflate.decompress(raw, limit + 1)
    if not inflate.eof and len(body) <= limit:
        raise zlib.error("the data ends in the middle")
    return body


def read_json_object(body: bytes) -> JsonObject:
    """The body as a JSON object. Raises ``InvalidRequest`` saying what is wrong with it."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"the request body is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise InvalidRequest(f"the request body must be a JSON object, not {type(value).__name__}")
    return value
