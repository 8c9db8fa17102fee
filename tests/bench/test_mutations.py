"""A seed gives the same requests again, and together they are wrong in every way."""

import json
from random import Random

from bench.fuzz import golden_samples
from bench.mutations import Request, keys_in, make_request, shrink

SAMPLES = golden_samples()


def requests(seed: int, count: int) -> list[Request]:
    return [make_request(Random(f"{seed}:{number}"), SAMPLES, "dgm_key") for number in range(count)]


def test_a_seed_gives_the_same_requests_again() -> None:
    assert requests(1, 200) == requests(1, 200)
    assert requests(1, 20) != requests(2, 20)


def test_the_requests_are_wrong_in_every_way() -> None:
    made = requests(1, 3000)
    assert {request.dialect for request in made} >= {
        "anthropic",
        "openai_chat",
        "openai_responses",
        "google",
        "control",
    }
    assert {request.leaves for request in made} == {None, "sending", "reading"}
    assert {request.method for request in made} >= {"GET", "POST", "PUT", "DELETE"}
    bodies = [request.body for request in made]
    for piece in (b"[" * 20_000, b'{"a":' * 1100, b"NaN", b'"\\ud800"', b"\xed\xa0\x80", b"\x00", b"9" * 400, b"1e999"):
        assert any(piece in body for body in bodies), piece
    encodings = {value for request in made for name, value in request.headers if name == b"content-encoding"}
    assert encodings >= {b"gzip", b"deflate", b"zstd", b"br"}
    right = {json.dumps(sample.body, sort_keys=True) for sample in SAMPLES}
    assert sum(_canonical(body) in right for body in bodies) > 100
    names = " ".join(change for request in made for change in request.changes)
    for kind in ("replace", "remove", "repeat", "rename", "wrap", "turn", "swap", "add", "whole", "odd text", "header"):
        assert kind in names


def _canonical(body: bytes) -> str:
    try:
        return json.dumps({k: v for k, v in json.loads(body).items() if k != "stream"}, sort_keys=True)
    except (ValueError, AttributeError, RecursionError):
        return ""


def test_samples_are_not_changed() -> None:
    before = json.dumps([sample.body for sample in SAMPLES])
    requests(3, 500)
    assert json.dumps([sample.body for sample in SAMPLES]) == before


def test_a_recording_is_made_small_and_keeps_its_shape() -> None:
    value = {"a": "x" * 1000, "b": [{"c": n} for n in range(9)]}
    small = shrink(value)
    assert (len(small["a"]), len(small["b"])) == (200, 5)
    assert keys_in(small) == keys_in(value) == {"a", "b", "c"}
