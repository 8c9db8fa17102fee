import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from transformers import AutoTokenizer

from tests.models import tiny_model_folder
from tests.scripted import Scripted, scripted_engine

CALL = {"name": "write", "arguments": {"path": "é.txt", "n": 1}}


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(tiny_model_folder())


def generate(engine: Scripted, prompt: list[int], *, stream: bool = False, **params: Any) -> httpx.Response:
    body = {"token_ids": prompt, "sampling_params": {"max_tokens": 100, "logprobs": 0, **params}, "stream": stream}
    return httpx.post(f"{engine.address}/inference/v1/generate", json=body, trust_env=False, timeout=10)


def choices(response: httpx.Response) -> list[dict[str, Any]]:
    """The ``choices[0]`` of every event of a stream."""
    *events, end, rest = response.text.split("\n\n")
    assert (end, rest) == ("data: [DONE]", "")
    return [json.loads(event.removeprefix("data: "))["choices"][0] for event in events]


def test_replies_are_the_ids_that_the_template_writes(tokenizer: Any) -> None:
    with scripted_engine([{"reasoning": "hm", "text": "Let me.", "tool_calls": [CALL, CALL]}]) as engine:
        choice = generate(engine, [5]).json()["choices"][0]
    block = '<tool_call>\n{"name": "write", "arguments": {"path": "é.txt", "n": 1}}\n</tool_call>'
    expected = f"<think>\nhm\n</think>\n\nLet me.\n{block}\n{block}<|im_end|>"
    assert tokenizer.decode(choice["token_ids"]) == expected
    assert choice["token_ids"] == tokenizer.encode(expected)
    assert choice["finish_reason"] == "stop"
    assert choice["weight_versions"] == [{"version": "default", "start": 0, "end": len(choice["token_ids"])}]


def test_logprobs_are_finite_distinct_and_survive_float32() -> None:
    with scripted_engine([{"text": "one two three", "repeat": True}]) as engine:
        replies = [generate(engine, [5]).json()["choices"][0] for _ in range(3)]
        assert generate(engine, [5]).json()["choices"][0] != replies[0]
    entries = [entry for reply in replies for entry in reply["logprobs"]["content"]]
    values = [entry["logprob"] for entry in entries]
    assert [entry["token_id"] for entry in entries] == [token for reply in replies for token in reply["token_ids"]]
    assert len(set(values)) == len(values)
    assert all(-100 < value < 0 and float(np.float32(value)) == value for value in values)


@pytest.mark.parametrize("chunk", [1, 2, 100])
def test_a_stream_says_the_same_as_a_whole_reply(chunk: int) -> None:
    steps: list[dict[str, Any]] = [{"text": "one two three", "chunk": chunk}, {"text": "one two three"}]
    with scripted_engine(steps) as engine:
        streamed = choices(generate(engine, [5], stream=True))
        whole = generate(engine, [5]).json()["choices"][0]
    assert [token for choice in streamed for token in choice["token_ids"]] == whole["token_ids"]
    assert [choice["finish_reason"] for choice in streamed] == [None] * (len(streamed) - 1) + ["stop"]
    assert [choice["weight_versions"] for choice in streamed[:-1]] == [None] * (len(streamed) - 1)
    assert len(streamed) == -(-len(whole["token_ids"]) // chunk)


def test_limits_end_a_reply(tokenizer: Any) -> None:
    two = tokenizer.encode(" two")[0]
    with scripted_engine([{"raw": "one two three", "repeat": True}]) as engine:
        by_length = generate(engine, [5], max_tokens=2).json()["choices"][0]
        by_id = generate(engine, [5], stop_token_ids=[two]).json()["choices"][0]
        by_text = generate(engine, [5], stop=["wo t"]).json()["choices"][0]
        by_end = generate(engine, [5]).json()["choices"][0]
    assert (len(by_length["token_ids"]), by_length["finish_reason"]) == (2, "length")
    assert (by_id["token_ids"][-1], by_id["finish_reason"], by_id["stop_reason"]) == (two, "stop", two)
    assert (tokenizer.decode(by_text["token_ids"]), by_text["stop_reason"]) == ("one two three", "wo t")
    assert (tokenizer.decode(by_end["token_ids"]), by_end["stop_reason"]) == ("one two three<|im_end|>", None)


def test_exact_ids_and_a_reply_without_an_end() -> None:
    with scripted_engine([{"ids": [9, 8, 7]}, {"text": "cut", "end": False}, {"ids": []}]) as engine:
        exact, cut, empty = [choices(generate(engine, [5], stream=True)) for _ in range(3)]
    assert [choice["token_ids"] for choice in exact] == [[9], [8], [7]]
    assert exact[-1]["finish_reason"] == cut[-1]["finish_reason"] == "length"
    assert [choice["token_ids"] for choice in empty] == [[]]


def test_refusals(tokenizer: Any) -> None:
    with scripted_engine(
        [{"match": "never", "text": "x"}, {"fail": 503, "message": "busy"}], max_model_len=8
    ) as engine:
        assert generate(engine, [5]).status_code == 503
        none_left = generate(engine, tokenizer.encode("the prompt"))
        assert none_left.status_code == 500
        assert "the prompt" in none_left.json()["error"]["message"]
        too_long = generate(engine, [5] * 8, stream=True)
        assert too_long.status_code == 200, "vLLM says it within the stream"
        assert "(length 8) is longer than the maximum model length of 8" in too_long.text
        assert generate(engine, [5] * 8).status_code == 400
        assert [asked["state"] for asked in engine.requests()] == ["refused"] * 4
        assert [asked["step"] for asked in engine.requests()] == [1, None, None, None]
        body = {"token_ids": [5], "sampling_params": {}, "model": "other"}
        assert httpx.post(f"{engine.address}/inference/v1/generate", json=body).status_code == 404
        assert httpx.post(f"{engine.address}/sleep").status_code == 404


@pytest.mark.parametrize("hold", ["first", "last"])
def test_a_held_reply_waits_for_its_release(hold: str) -> None:
    with scripted_engine([{"text": "one two three", "hold": hold}]) as engine:
        body = {"token_ids": [5], "sampling_params": {"max_tokens": 50}, "stream": True}
        with httpx.stream("POST", f"{engine.address}/inference/v1/generate", json=body) as response:
            events = (line for line in response.iter_lines() if line)
            before = [next(events) for _ in range(3)] if hold == "last" else []
            engine.wait_for_state(0, "running")
            engine.release()
            after = list(events)
    assert len(before) == (3 if hold == "last" else 0)
    assert after[-1] == "data: [DONE]"
    assert len(before + after) == 5


def test_it_knows_when_the_client_leaves() -> None:
    with scripted_engine([{"text": "one two three", "hold": "last"}, {"text": "x", "hold": "first"}]) as engine:
        for number in range(2):
            body = {"token_ids": [5], "sampling_params": {"max_tokens": 50}, "stream": True}
            with httpx.stream("POST", f"{engine.address}/inference/v1/generate", json=body):
                engine.wait_for_state(number, "running")
            engine.wait_for_state(number, "aborted")


def test_the_weight_label_can_be_set() -> None:
    with scripted_engine([{"text": "x"}]) as engine:
        httpx.post(f"{engine.address}/update_weight_version", json={"new_version": "v2"}).raise_for_status()
        assert generate(engine, [5]).json()["choices"][0]["weight_versions"][0]["version"] == "v2"


def test_it_runs_as_a_process(tmp_path: Path) -> None:
    script, port_file = tmp_path / "script.json", tmp_path / "port"
    script.write_text('[{"text": "hi", "repeat": true}]')
    command = [sys.executable, "-m", "dragoman.rollout.scripted_engine", "--model", str(tiny_model_folder())]
    command += ["--script", str(script), "--port", "0", "--port-file", str(port_file)]
    process = subprocess.Popen(command)
    try:
        limit = time.monotonic() + 60
        while not port_file.exists():
            assert process.poll() is None
            assert time.monotonic() < limit
            time.sleep(0.05)
        engine = Scripted(f"http://127.0.0.1:{port_file.read_text()}")
        assert httpx.get(f"{engine.address}/health", trust_env=False, timeout=30).status_code == 200
        model = httpx.get(f"{engine.address}/v1/models", trust_env=False).json()["data"][0]
        assert (model["root"], model["parent"], model["max_model_len"]) == (str(tiny_model_folder()), None, 65536)
        assert generate(engine, [5]).status_code == 200
    finally:
        process.terminate()
        process.wait()


def test_a_wrong_script_ends_the_process_with_its_reason(tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    script.write_text('[{"txt": "hi"}]')
    command = [sys.executable, "-m", "dragoman.rollout.scripted_engine", "--model", str(tiny_model_folder())]
    done = subprocess.run([*command, "--script", str(script)], capture_output=True, text=True)
    assert done.returncode == 2
    assert "step 0: ['txt'] is not known" in done.stderr


def test_another_script_takes_the_place_of_the_first_and_what_was_asked_is_forgotten(tokenizer: Any) -> None:
    with scripted_engine([{"text": "one"}]) as engine:
        generate(engine, [5])
        put = httpx.post(f"{engine.address}/scripted/script", json=[{"text": "two"}], trust_env=False)
        forgotten = engine.requests()
        said = tokenizer.decode(generate(engine, [5]).json()["choices"][0]["token_ids"])
        wrong = httpx.post(f"{engine.address}/scripted/script", json=[{"txt": "x"}], trust_env=False)
    assert (put.status_code, forgotten, said) == (200, [], "two<|im_end|>")
    assert wrong.status_code == 400
    assert "txt" in wrong.text


@pytest.mark.parametrize("obey", [True, False])
def test_a_step_obeys_the_schema_of_a_request_when_it_says_so(tokenizer: Any, obey: bool) -> None:
    schema = {"type": "object", "properties": {"title": {"type": "string"}}, "required": ["title"]}
    form = {"type": "sequence", "elements": [{"type": "json_schema", "json_schema": schema}]}
    tag = json.dumps({"type": "structural_tag", "format": form})
    with scripted_engine([{"text": "a title", "obey": obey, "repeat": True}]) as engine:
        held = generate(engine, [5], structured_outputs={"structural_tag": tag}).json()["choices"][0]
        free = generate(engine, [5]).json()["choices"][0]
    assert tokenizer.decode(held["token_ids"]) == ('{"title": "x"}<|im_end|>' if obey else "a title<|im_end|>")
    assert tokenizer.decode(free["token_ids"]) == "a title<|im_end|>"
