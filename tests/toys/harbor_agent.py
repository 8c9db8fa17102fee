"""An agent for Harbor that makes one call with the variables it is given, and writes a file. Harbor loads it."""

import shlex

from harbor.agents.base import BaseAgent
from harbor.environments.base import BaseEnvironment
from harbor.models.agent.context import AgentContext

PROGRAM = """
import json, os, urllib.request
body = {"model": "any", "messages": [{"role": "user", "content": os.environ["TOY_PROMPT"]}]}
request = urllib.request.Request(
    os.environ["OPENAI_BASE_URL"] + "/chat/completions",
    json.dumps(body).encode(),
    {"authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "content-type": "application/json"},
)
with urllib.request.urlopen(request, timeout=60) as reply:
    print(json.load(reply)["choices"][0]["message"]["content"])
if "wrong" not in os.environ["TOY_PROMPT"]:
    open("hello.txt", "w").write("hello")
"""


class ToyAgent(BaseAgent):  # type: ignore[misc]  # Harbor has an environment of its own
    @staticmethod
    def name() -> str:
        return "toy"

    def version(self) -> str:
        return "1"

    async def setup(self, environment: BaseEnvironment) -> None:
        pass

    async def run(self, instruction: str, environment: BaseEnvironment, context: AgentContext) -> None:
        """``crash`` in the instruction: it ends as a failed agent does."""
        done = await environment.exec(f"python3 -c {shlex.quote(PROGRAM)}", env={"TOY_PROMPT": instruction})
        if done.return_code or "crash" in instruction:
            raise RuntimeError(f"the toy agent ended with {done.return_code}: {done.stderr}")
