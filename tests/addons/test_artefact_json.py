"""Artefacts in the control API's JSON: any bytes come through, and what is wrong is named."""

from typing import Any

import pytest

from dragoman.addons.artefact_json import artefact_json, read_artefacts
from dragoman.addons.errors import InvalidRequest
from dragoman.store.records import Artefact, ArtefactInfo

ENTRY = {"name": "stdout.txt", "content_type": "text/plain", "data": "/wA="}


def test_any_bytes_come_through() -> None:
    assert read_artefacts({"artefacts": [ENTRY, ENTRY | {"data": "", "omitted": 4}]}) == [
        Artefact("stdout.txt", "text/plain", b"\xff\0"),
        Artefact("stdout.txt", "text/plain", b"", 4),
    ]
    assert read_artefacts({"artefacts": []}) == []


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "artefacts"),
        ({"artefacts": {}}, "artefacts"),
        ({"artefacts": [], "more": 1}, "artefacts"),
        ({"artefacts": ["x"]}, "artefacts[0]"),
        ({"artefacts": [ENTRY, ENTRY | {"size": 2}]}, "artefacts[1]"),
        ({"artefacts": [{"name": "x", "data": ""}]}, "artefacts[0].content_type"),
        ({"artefacts": [ENTRY | {"data": 3}]}, "artefacts[0].data"),
        ({"artefacts": [ENTRY | {"data": "/w"}]}, "artefacts[0].data"),
        ({"artefacts": [ENTRY | {"data": "ä==="}]}, "artefacts[0].data"),
        ({"artefacts": [ENTRY | {"omitted": True}]}, "artefacts[0].omitted"),
        ({"artefacts": [ENTRY | {"omitted": 1.5}]}, "artefacts[0].omitted"),
    ],
)
def test_what_is_wrong_is_named(body: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_artefacts(body)
    assert caught.value.field == field


def test_an_artefact_is_shown_without_its_content() -> None:
    shown = {"name": "a", "content_type": "text/plain", "size": 3, "omitted": 1, "stored_at": 2.5}
    assert artefact_json(ArtefactInfo("a", "text/plain", 3, 1, 2.5)) == shown
