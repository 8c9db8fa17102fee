"""How far a run is, in numbers and in one line. Pure; the clock is passed in."""

import re
from collections import Counter
from dataclasses import dataclass, field

from dragoman.rollout.samples import Outcome

__all__ = ["Progress", "kind_of_reason"]

PASSED = 1.0 - 1e-9
"""The least reward that counts as passed."""


@dataclass
class Progress:
    total: int | None
    """Samples to run; None: it goes on for ever."""
    started: float
    running: int = 0
    done: int = 0
    before: int = 0
    """Of ``done``, those of an earlier start of the run."""
    ends: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    """Of samples that did not complete."""
    again: int = 0
    """Episodes that were abandoned because something was gone."""
    scored: int = 0
    passed: int = 0
    rewards: float = 0.0
    tokens: int = 0
    """Sampled."""
    calls: int = 0

    def add(self, outcome: Outcome, *, before: bool = False) -> None:
        if outcome.again:
            self.again += 1
            return
        self.done += 1
        self.before += before
        self.ends[outcome.end] += 1
        if outcome.end != "completed":
            self.reasons[kind_of_reason(outcome.reason)] += 1
        if outcome.reward is not None:
            self.scored += 1
            self.passed += outcome.reward >= PASSED
            self.rewards += outcome.reward
        if not before:
            self.tokens += outcome.completion_tokens
            self.calls += outcome.calls

    def line(self, now: float) -> str:
        elapsed = max(now - self.started, 1e-9)
        whole = "" if self.total is None else f"/{self.total}"
        parts = [f"{self.done}{whole} done", f"{self.running} running"]
        parts += [f"{count} {end}" for end, count in sorted(self.ends.items()) if end != "completed"]
        if self.scored:
            rate, mean = self.passed / self.scored, self.rewards / self.scored
            parts.append(f"passed {rate:.0%}, mean reward {mean:.3f}")
        parts.append(f"{self.tokens / elapsed:.0f} tokens/s")
        fresh = self.done - self.before
        if self.total is not None and fresh and self.done < self.total:
            parts.append(f"{_duration(elapsed / fresh * (self.total - self.done))} left")
        return " · ".join(parts)


def kind_of_reason(reason: str | None) -> str:
    """The reason without what differs from one sample to the next: numbers, and all behind the first line."""
    first = (reason or "no reason").splitlines()[0][:120]
    return re.sub(r"\d[\d,.]*", "N", first)


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
