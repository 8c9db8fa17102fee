"""Stands in for `harbor run --config FILE`: one call to the gateway, and the files that Harbor would leave."""

import json
import os
import sys
import urllib.request
from pathlib import Path


def main(config: Path) -> None:
    job = json.loads(config.read_text())
    (agent,), (task,) = job["agents"], job["tasks"]
    assert not {"OPENAI_API_KEY", "DRAGOMAN_HOME"} & set(os.environ), "our own variables leak"
    assert config.stat().st_mode & 0o077 == 0, "the key can be read by others"
    body = {"model": agent["model_name"], "messages": [{"role": "user", "content": "go"}]}
    request = urllib.request.Request(
        agent["env"]["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps(body).encode(),
        {"authorization": "Bearer " + agent["env"]["OPENAI_API_KEY"], "content-type": "application/json"},
    )
    urllib.request.urlopen(request, timeout=60).read()
    trial = Path(job["jobs_dir"], job["job_name"], "trial__1")
    (trial / "verifier").mkdir(parents=True)
    (trial / "verifier" / "test-stdout.txt").write_text("checked\n")
    name = Path(task["path"]).name
    failure = None
    if name == "crash":
        policy = {"should_retry": True, "should_grade": True, "has_valid_reward": True}
        failure = {"exception_type": "RuntimeError", "exception_message": "it ended with 7", "policy": policy}
    rewards = {"reward": 0.0 if name == "wrong" else 1.0}
    result = {"verifier_result": {"rewards": rewards}, "exception_info": failure}
    (trial / "result.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main(Path(sys.argv[sys.argv.index("--config") + 1]))
