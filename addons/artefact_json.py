"""Artefacts as the control API says them. Pure.

Their content is in base64, since a diff, or what a program prints, is any bytes.
"""

import base64
import binascii

from dragoman.addons.errors import InvalidRequest
from dragoman.store.records import Artefact, ArtefactInfo, JsonObject

_FIELDS = {"name", "content_type", "data", "omitted"}


def read_artefacts(body: JsonObject) -> list[Artefact]:
    """The artefacts of ``{"artefacts": [{"name", "content_type", "data", "omitted"}, …]}``. Raises ``InvalidRequest``.

    Names and sizes are for the store to judge.
    """
    entries = body.get("artefacts")
    if not isinstance(entries, list) or set(body) != {"artefacts"}:
        raise InvalidRequest("the body must be {'artefacts': […]} and nothing else", field="artefacts")
    return [_read(entry, f"artefacts[{at}]") for at, entry in enumerate(entries)]


def _read(entry: object, where: str) -> Artefact:
    if not isinstance(entry, dict) or set(entry) - _FIELDS:
        raise InvalidRequest(f"{where} must be an object of {', '.join(sorted(_FIELDS))}", field=where)
    for name in ("name", "content_type", "data"):
        if not isinstance(entry.get(name), str):
            raise InvalidRequest(f"{where}.{name} must be a string, not {entry.get(name)!r}", field=f"{where}.{name}")
    omitted = entry.get("omitted", 0)
    if isinstance(omitted, bool) or not isinstance(omitted, int):
        raise InvalidRequest(f"{where}.omitted must be a whole number, not {omitted!r}", field=f"{where}.omitted")
    try:
        data = base64.b64decode(entry["data"], validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidRequest(f"{where}.data is no base64 ({error})", field=f"{where}.data") from error
    return Artefact(entry["name"], entry["content_type"], data, omitted)


def artefact_json(info: ArtefactInfo) -> JsonObject:
    """``stored_at`` is in unix seconds."""
    return {
        "name": info.name,
        "content_type": info.content_type,
        "size": info.size,
        "omitted": info.omitted,
        "stored_at": info.stored_at,
    }
