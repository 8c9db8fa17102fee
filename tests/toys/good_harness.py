"""A harness of forty lines that has no entry: the OpenAI SDK, one shell tool, a conversation that only grows."""

import json
import subprocess
import sys
from typing import Any

from openai import OpenAI

TOOL = {
    "type": "function",
    "function": {
        "name": "run_shell",
        "description": "Run a command in bash and return what it prints.",
        "parameters": {
            "type": "object",
            "properties": {"script": {"type": "string"}, "why": {"type": "string"}},
            "required": ["script", "why"],
        },
    },
}


def run(arguments: str) -> str:
    try:
        script = json.loads(arguments)["script"]
    except (ValueError, KeyError, TypeError) as error:
        return f"wrong arguments: {error!r}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True)
    return done.stdout + done.stderr


def main(prompt: str) -> None:
    client: Any = OpenAI()
    said: list[Any] = [{"role": "system", "content": "Work in this folder."}, {"role": "user", "content": prompt}]
    while True:
        reply = client.chat.completions.create(model="any", messages=said, tools=[TOOL]).choices[0].message
        said.append(reply.model_dump(exclude_none=True))
        if not reply.tool_calls:
            print(reply.content)
            return
        for call in reply.tool_calls:
            said.append({"role": "tool", "tool_call_id": call.id, "content": run(call.function.arguments)})


main(sys.argv[1])
