"""Calls a task's function in a process of its own: ``python -m dragoman.rollout.function_inside PLAN RESULT``."""

import importlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dragoman.rollout.seen import from_json


def main(plan_path: str, result_path: str) -> None:
    plan: dict[str, Any] = json.loads(Path(plan_path).read_text())
    module_name, _, name = plan["function"].partition(":")
    sys.path.insert(0, plan["folder"])
    function = getattr(importlib.import_module(module_name), name)
    value = function(from_json(plan["episode"]), Path(plan["workspace"]))
    scores = dict(value) if isinstance(value, Mapping) else {"reward": value}
    numbers = {str(key): float(one) for key, one in scores.items()}
    if "reward" not in numbers:
        raise ValueError(f"{plan['function']} returned no 'reward', only {', '.join(numbers) or 'nothing'}")
    Path(result_path).write_text(json.dumps(numbers, allow_nan=False))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
