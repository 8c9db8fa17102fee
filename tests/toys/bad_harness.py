"""A harness that is hard to train in: its address is fixed, and it tells the model its history as one text."""

import json
import subprocess
import sys
from typing import Any

from openai import OpenAI

TOOL = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "Run a command.",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
    },
}


def main(prompt: str) -> None:
    client: Any = OpenAI(base_url="https://api.openai.com/v1", max_retries=0)
    history = ""
    while True:
        told = f"The task: {prompt}\n\nWhat was done so far:\n{history or 'nothing'}"
        messages = [{"role": "user", "content": told}]
        reply = client.chat.completions.create(model="any", messages=messages, tools=[TOOL]).choices[0].message
        if not reply.tool_calls:
            print(reply.content)
            return
        for call in reply.tool_calls:
            command = json.loads(call.function.arguments)["command"]
            done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
            history += f"You ran `{command}` and saw:\n{done.stdout}\n"


main(sys.argv[1])
