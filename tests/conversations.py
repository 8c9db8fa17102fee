"""Conversations with a real model through a gateway, by plain Chat Completions: straight ones, and ones that branch.

The client echoes what it was sent and decides nothing by chance; replies are sampled. The questions are chosen for what
is tokenised in more than one way: multi-byte text, code, JSON, white space.
"""

from typing import Any

import httpx

QUESTIONS = (
    "Tell me about the sea, in French: é, à, ç.",
    "Write a Python function that reverses a list.",
    "Give me a JSON object with three animals.",
    "用中文写一句话",
    "What is 17 times 23? Show the steps.",
    "Write an ASCII table with emojis 🙂🚀.",
)
FOLLOW_UPS = (
    "Go on.",
    "Shorter, please.",
    "Now as a list:\n- one\n- two",
    "为什么",
    '{"more": true}',
    "  And\tthen?  ",
)
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "lookup",
        "description": "Looks a word up.",
        "parameters": {"type": "object", "properties": {"word": {"enum": ["sea", "list", "表"]}}, "required": ["word"]},
    },
}
CALL = 200
"""Tokens for a forced call: reasoning may take half of them, and a call of ``TOOL`` has fewer bytes than the other half
has tokens. A gateway must allow that many."""
Message = dict[str, Any]


class Conversation:
    """What one client of an episode says and hears. ``number`` chooses the words; ``most``: tokens of a reply."""

    def __init__(self, http: httpx.Client, number: int, most: int) -> None:
        self.http = http
        self.number = number
        self.most = most
        self.said: list[Message] = [user(QUESTIONS[number % len(QUESTIONS)])]

    def ask(self, said: list[Message] | None = None, **fields: Any) -> Message:
        """One call; the reply's message."""
        body = {"model": "m", "messages": said or self.said, "max_tokens": self.most, **fields}
        response = self.http.post("/v1/chat/completions", json=body)
        assert response.status_code == 200, response.text
        reply: Message = response.json()["choices"][0]["message"]
        return reply

    def follow_up(self, turn: int) -> Message:
        return user(FOLLOW_UPS[(self.number + turn) % len(FOLLOW_UPS)])


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def straight(address: str, key: str, turns: int, number: int, most: int) -> None:
    """``turns`` turns, each of them behind the last."""
    with _client(address, key) as http:
        talk = Conversation(http, number, most)
        for turn in range(turns):
            talk.said += [talk.ask(), talk.follow_up(turn)]


def branching(address: str, key: str, number: int, most: int) -> None:
    """Two samples of one turn, each gone on with; a reply cut after six tokens, gone on with; a client that is lost in
    the middle of a reply and asks again; an edited history, gone on with; a forced tool call, its result, and more.

    So an episode has four traces of several turns: one of 5 calls; one of 2 behind the first call of that; one of 2
    behind the edit; one of 2 behind the forced call, which is context. (Where a client's leaving is noticed late, its
    second request is another sample, and there is a trace of that one call more.)
    """
    with _client(address, key) as http:
        talk = Conversation(http, number, most)
        start = [*talk.said, talk.ask(), talk.follow_up(0)]
        one, other = ([*start, talk.ask(start), talk.follow_up(1)] for _ in range(2))
        other += [talk.ask(other), talk.follow_up(2)]
        one += [talk.ask(one, max_tokens=6), talk.follow_up(3)]
        one += [talk.ask(one), talk.follow_up(4)]
        with http.stream(
            "POST", "/v1/chat/completions", json={"model": "m", "messages": one, "max_tokens": most, "stream": True}
        ) as response:
            next(response.iter_bytes())
        talk.ask(one)

        edited = [user(start[0]["content"] + " Be brief."), *start[1:]]
        edited += [talk.ask(edited), talk.follow_up(1)]
        talk.ask(edited)

        called = talk.ask(tools=[TOOL], tool_choice="required", parallel_tool_calls=False, max_tokens=CALL)
        results = [{"role": "tool", "tool_call_id": call["id"], "content": "été 🌊"} for call in called["tool_calls"]]
        with_tool = [*talk.said, called, *results]
        with_tool += [talk.ask(with_tool, tools=[TOOL]), talk.follow_up(5)]
        talk.ask(with_tool, tools=[TOOL])


def _client(address: str, key: str) -> httpx.Client:
    return httpx.Client(
        base_url=address, headers={"authorization": f"Bearer {key}"}, trust_env=False, timeout=httpx.Timeout(600)
    )
