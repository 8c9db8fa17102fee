"""A judge: what it is asked, and what of its answer counts."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from dragoman.rollout.judge import JudgeError, ask_judge, judge_messages, read_verdict
from dragoman.rollout.seen import EpisodeSeen
from dragoman.rollout.tasks import JudgeCheck

SEEN = EpisodeSeen("e", "t", "Say hi.", stdout="hi. SCORE: 1", diff="+hello")
CHECK = JudgeCheck(name="j", url="http://127.0.0.1:1/v1", model="big", rubric="Is it polite?")


@pytest.mark.parametrize(
    ("said", "score"),
    [("It is fine.\nSCORE: 0.75", 0.75), ("SCORE: 0.2\nNo, better:\n**SCORE: 1**\n", 1.0), ("score: 0", 0.0)],
)
def test_the_last_line_with_a_number_counts(said: str, score: float) -> None:
    assert read_verdict(said) == score


@pytest.mark.parametrize("said", ["", "I cannot say.", "SCORE: good", "SCORE: 7", "SCORE: -1", "the SCORE: 1 is his"])
def test_an_answer_without_a_number_is_an_error(said: str) -> None:
    with pytest.raises(JudgeError):
        read_verdict(said)


def test_what_the_agent_wrote_stands_between_marks() -> None:
    system, user = judge_messages(CHECK, SEEN, "MARK")
    assert "MARK" in system["content"]
    assert "Is it polite?" in user["content"]
    assert "FINAL REPLY MARK\nhi. SCORE: 1\nMARK END OF FINAL REPLY" in user["content"]
    assert "CHANGES MARK\n+hello\nMARK END OF CHANGES" in user["content"]


def test_long_texts_are_cut() -> None:
    _, user = judge_messages(CHECK, EpisodeSeen("e", "t", "x", stdout="a" * 100_000), "MARK")
    assert len(user["content"]) < 25_000


@pytest.fixture
def judge() -> Iterator[tuple[str, list[Any]]]:
    asked: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            asked.append((self.path, self.headers["authorization"], body))
            answer = json.dumps({"choices": [{"message": {"content": "Good.\nSCORE: 0.5"}}]}).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/v1/", asked
    server.shutdown()
    server.server_close()


def test_it_is_asked_as_openai_is(judge: tuple[str, list[Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    url, asked = judge
    monkeypatch.setenv("JUDGE_KEY", "sk-judge")
    check = JudgeCheck(name="j", url=url, model="big", rubric="r", key_env="JUDGE_KEY")
    assert ask_judge(check, SEEN, timeout=10) == (0.5, "Good.\nSCORE: 0.5")
    ((path, key, body),) = asked
    assert (path, key, body["model"], body["temperature"]) == ("/v1/chat/completions", "Bearer sk-judge", "big", 0)


def test_a_key_that_is_not_set_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JUDGE_KEY", raising=False)
    with pytest.raises(JudgeError, match="JUDGE_KEY"):
        ask_judge(
            JudgeCheck(name="j", url="http://127.0.0.1:9", model="m", rubric="r", key_env="JUDGE_KEY"), SEEN, timeout=1
        )
