"""Request bodies: decompress within a limit, and read one JSON object. Pure."""

import gzip
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
                inflate = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
                body = inflate.decompress(raw, limit + 1)
            case "deflate":
                inflate = zlib.decompressobj()
                body = inflate.decompress(raw, limit + 1)
            case "zstd":
                with zstandard.ZstdDecompressor().stream_reader(raw) as reader:
                    body = reader.read(limit + 1)
            case _:
                raise InvalidRequest(f"unsupported Content-Encoding {encoding!r}; send gzip, deflate, zstd or none")
    except (zlib.error, gzip.BadGzipFile, zstandard.ZstdError) as error:
        raise InvalidRequest(f"the body is not valid {name} data: {error}") from error
    if len(body) > limit:
        raise TooLarge(f"the request body is larger than {limit} bytes")
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
