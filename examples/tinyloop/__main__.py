"""``python -m examples.tinyloop --harness pi --seed 0``: the whole example; run again, it goes on where it was."""

import argparse
from pathlib import Path

from examples.tinyloop.stages import Plan, run_stages


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.tinyloop", description=__doc__)
    parser.add_argument("--harness", default="pi", choices=("pi", "claude", "codex"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="default: .run/tinyloop/<harness>-<seed>")
    parser.add_argument("--small", action="store_true", help="a few tasks, two versions: does it work?")
    options = parser.parse_args()
    folder = (options.folder or Path(".run/tinyloop") / f"{options.harness}-{options.seed}").absolute()
    if options.small:
        plan = Plan(
            options.harness,
            options.seed,
            folder,
            train=20,
            held_out=5,
            unseen=2,
            teacher_samples=2,
            warm_up={"num_train_epochs": 2},
            loop={"eval_every": 2, "stop_versions": 2, "samples": 4, "eval_samples": 1},
            grpo={"groups_per_step": 1},
        )
    else:
        plan = Plan(options.harness, options.seed, folder)
    run_stages(plan)


if __name__ == "__main__":
    main()
