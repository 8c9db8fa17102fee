"""Whether a harness can be trained in, from what a probe found. Pure.

It can where its calls reach the gateway and are answered, and where a later turn continues what was sampled to the
token. Everything else makes it better or worse, and is told as a note.
"""

from collections.abc import Sequence

from dragoman.rollout.probe.judge import findings, run_of, turns_of, works
from dragoman.rollout.probe.records import CaseRun, Finding, Report, Verdict
from dragoman.rollout.setups import Mode

__all__ = ["judge"]

# Said of a harness that ends with an error where others go on: what a user of it should see to.
_NOTES = {
    "empty": "an empty reply ends its run with an error: an episode of that is failed, not rewarded low",
    "error-500": "one failure of the server ends its run: watch the engine",
    "error-429": "it takes one 429 for the end: let calls wait in the gateway, which sends none",
    "stream-failure": "a failure inside a stream ends its run: watch the engine",
    "silence": "it does not wait for a slow first token: keep the engine's queue short",
    "cut-text": "a reply that the length limit cuts ends its run: give replies room (--max-reply-tokens)",
    "cut-call": "a tool call that the length limit cuts ends its run: give replies room (--max-reply-tokens)",
    "broken-json": "a tool call that is no JSON ends its run, where a small model needs a second chance",
    "wrong-args": "a tool call with wrong arguments ends its run, where a small model needs a second chance",
    "unknown-tool": "a call of an unknown tool ends its run, where a small model needs a second chance",
}


def judge(
    runs: Sequence[CaseRun],
    *,
    what: str,
    version: str | None = None,
    variant: str | None = None,
    isolated: bool,
    told: Sequence[str] = (),
) -> Report:
    """The report on a harness.

    ``told``: what it had to be told beside the ready-made environment, one line each: the files of its table entry, or
    the arguments of its command.
    """
    found = findings(runs)
    modes = tuple(dict.fromkeys(run.mode for run in runs))
    because, settings = [*why_not(runs, modes, found)], list(told)
    working = [mode for mode in modes if _good(runs, mode)]
    if working and not because:
        settings += [_by(working[0], mode, found) for mode in modes if mode not in working]
        text = run_of(runs, "text", working[0])
        if text is not None and text.exit_code is None:
            settings.append(
                "a time limit (`--timeout`): it does not end by itself when the model has said its last word"
            )
    verdict: Verdict = "trainable with these settings" if settings else "trainable as is"
    if because:
        verdict, settings = "not trainable", []
    return Report(
        what, version, variant, isolated, found, verdict, tuple(settings), tuple(because), tuple(notes(runs, found))
    )


def why_not(runs: Sequence[CaseRun], modes: Sequence[Mode], found: Sequence[Finding]) -> list[str]:
    """Reasons why it cannot be trained in; empty when it can."""
    reached = [mode for mode in modes if works(runs, mode)]
    if not reached:
        bad = [finding for finding in found if finding.weight == "bad"]
        return [f"{finding.about} {finding.answer}: {finding.detail}" for finding in bad] or ["no call was answered"]
    if any(_good(runs, mode) for mode in reached):
        return []
    reasons = []
    for mode in reached:
        run = run_of(runs, "tools", mode)
        told = () if run is None else turns_of(run)
        reasons.append(
            f"by {_way(mode)} none of its {len(told)} later turns continues what the model said: "
            + next((f.detail for f in found if (f.about, f.mode) == ("exact turns", mode)), "")
        )
    changed = next((f.detail for f in found if f.about == "history" and f.answer == "changed"), "")
    if changed:
        reasons.append(f"what it changes of the history: {changed}")
    reasons += [
        f"{f.about} {f.answer}: {f.detail}" for f in found if f.mode not in (None, *reached) and f.weight == "bad"
    ]
    return reasons


def _good(runs: Sequence[CaseRun], mode: Mode) -> bool:
    """Whether calls are answered in this mode, and later turns, where there are any, continue exactly."""
    run = run_of(runs, "tools", mode)
    told = () if run is None else turns_of(run)
    return works(runs, mode) and (not told or "exact" in told)


def _by(good: Mode, other: Mode, found: Sequence[Finding]) -> str:
    why = [f for f in found if f.mode == other and f.weight == "bad"]
    said = "; ".join(f"{f.about} {f.answer}" + (f": {f.detail}" if f.detail else "") for f in why)
    return f"`--mode {good}`, since by {_way(other)} it does not work ({said or 'no call was answered'})"


def _way(mode: Mode) -> str:
    return "base URL" if mode == "base-url" else "proxy"


def notes(runs: Sequence[CaseRun], found: Sequence[Finding]) -> list[str]:
    """What is worth knowing of a harness that can be trained in."""
    said = [_NOTES[f.about] for f in found if f.about in _NOTES and f.weight == "bad"]
    for f in found:
        if f.about == "exact turns" and f.weight == "plain":
            said.append(f"not every turn is exact ({f.answer}): its episodes fall into several traces; {f.detail}")
        if f.about == "past the proxy" and f.answer == "yes":
            said.append(f"something goes past the proxy ({f.detail}): keep it in a network without another route")
        if f.about == "tools" and f.answer == "none":
            said.append("it calls no tools, so its turns were not tried")
        if f.about == "tools" and f.answer == "no shell":
            said.append("no tool that runs a command was found, so its turns were not tried")
        if f.about == "tool ran" and f.answer == "no":
            said.append(f"its tool: {f.detail}")
    return said
