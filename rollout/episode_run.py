"""One run of a harness in one episode: open it, start the harness, keep what is left of it, and end the episode.

Rules of this module: an episode that was opened is ended, whatever happens in between, with a typed end and a reason.
What could not be kept is told in the result and never raises over a run that was made. Artefacts and reward are given
before the end, so that whoever waits for the end finds them.
"""

import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from dragoman.gateway_client import GatewayClient, GatewayError, OpenedEpisode
from dragoman.rollout.changes import ChangesError, Snapshot, changes_since, take_own_snapshot, take_snapshot
from dragoman.rollout.harnesses import Harness, sign_of_failure
from dragoman.rollout.kept import Kept, cut
from dragoman.rollout.process import NO_LIMITS, HarnessResult, Launch, Limits, OnOutput, Stopped, Stream, run
from dragoman.signals import postponed
from dragoman.store.records import ARTEFACT_LIMIT, Artefact, EpisodeEnd, JsonObject, SamplingProfile

__all__ = ["EpisodeRun", "Finished", "Judged", "Ran", "how_it_ended", "run_in_episode"]

TEXT = "text/plain; charset=utf-8"


@dataclass(frozen=True)
class Ran:
    """A run whose last process has ended, before it is judged."""

    opened: OpenedEpisode
    result: HarnessResult
    end: EpisodeEnd
    reason: str | None
    stdout: bytes
    """At most ``ARTEFACT_LIMIT`` bytes, as is ``stderr``."""
    stderr: bytes
    changes: bytes
    """The diff of the working folder; empty also where there is none."""


@dataclass(frozen=True)
class Judged:
    """What a run was worth."""

    end: EpisodeEnd
    reason: str | None
    reward: float | None = None
    """None: the episode gets none."""
    components: dict[str, float] = field(default_factory=dict)
    artefacts: tuple[Artefact, ...] = ()


@dataclass(frozen=True)
class EpisodeRun:
    """What to run, and in what episode."""

    name: str
    """The harness's name, or the program's; for messages."""
    harness: Harness | None
    """None: a program that is not in the table."""
    prepare: Callable[[str, Path], Launch]
    """What to start, from the episode's token and a private home folder."""
    workdir: Path
    timeout: float
    """Seconds that it may take."""
    about: JsonObject = field(default_factory=dict)
    """What is kept of the run beside its numbers, in the episode's metadata: variant, mode, …"""
    home: Path | None = None
    """None: a folder of its own that is removed at the end."""
    task: str | None = None
    group: str | None = None
    expected: int | None = None
    deadline_seconds: float | None = None
    profile: SamplingProfile | None = None
    temperature: float | None = None
    make: Callable[[], None] | None = None
    """Fills the working folder, once the episode is open."""
    judge: Callable[[Ran], Judged] | None = None
    """Asked when the run is over and all its processes are gone. None: it ends as it ended, without a reward."""
    untrusted: bool = False
    """The diff is made without reading the working folder's own repository."""
    limits: Limits = NO_LIMITS
    stopped: Callable[[], bool] | None = None


@dataclass(frozen=True)
class Finished:
    episode_id: str
    end: EpisodeEnd
    reason: str | None
    """None for a run that went well."""
    result: HarnessResult
    problems: tuple[str, ...]
    """What could not be kept or told the gateway; empty when all is well."""
    judged: Judged | None = None


def run_in_episode(
    client: GatewayClient,
    wanted: EpisodeRun,
    *,
    on_opened: Callable[[OpenedEpisode], None] = lambda opened: None,
    on_output: OnOutput = lambda stream, data: None,
) -> Finished:
    """Run it once. The episode ends ``completed``, ``failed`` or ``timed_out`` by what became of the run.

    An exception that ends the run early (Ctrl-C, a signal's ``SystemExit``, ``Stopped``, an error of ``on_output``)
    kills all that the harness started, ends the episode as ``abandoned`` and is raised again. Raises ``GatewayError``
    when no episode can be opened, ``ValueError`` from ``prepare`` and ``make``, and ``OSError`` when the program cannot
    be started; the episode of the last two is ended as ``failed``.
    """
    opened = client.open_episode(
        task=wanted.task,
        group=wanted.group,
        expected=wanted.expected,
        deadline_seconds=wanted.deadline_seconds,
        profile=wanted.profile,
        temperature=wanted.temperature,
        metadata={"harness": wanted.name, **wanted.about},
    )
    kept: dict[Stream, Kept] = {"stdout": Kept(ARTEFACT_LIMIT), "stderr": Kept(ARTEFACT_LIMIT)}

    def output(stream: Stream, data: bytes) -> None:
        kept[stream].add(data)
        on_output(stream, data)

    episode = _Episode(client, opened, wanted, kept)
    with tempfile.TemporaryDirectory(prefix="dragoman-run-", ignore_cleanup_errors=True) as scratch:
        try:
            on_opened(opened)
            if wanted.make is not None:
                wanted.make()
            episode.look(Path(scratch) / "git")
            launch = wanted.prepare(opened.token, wanted.home or Path(scratch) / "home")
            result = run(launch, timeout=wanted.timeout, on_output=output, limits=wanted.limits, stopped=wanted.stopped)
            judged = episode.judged(result)
        except BaseException as error:
            with postponed():  # so that the episode is ended all the same
                episode.close(Judged(*why_it_stopped(error)), None)
            raise
        with postponed():
            problems = episode.close(judged, result)
    return Finished(opened.id, judged.end, judged.reason, result, tuple(problems), judged)


def how_it_ended(wanted: EpisodeRun, result: HarnessResult) -> tuple[EpisodeEnd, str | None]:
    """The typed end of the episode by the harness's exit and what it printed, and why; no reason when it went well."""
    if result.over_limit is not None:
        return "failed", f"{wanted.name} was stopped: {result.over_limit}"
    if result.exit_code is None:
        return "timed_out", f"{wanted.name} was stopped after {wanted.timeout:.0f} s"
    if result.exit_code < 0:
        return "failed", f"{wanted.name} was ended by signal {-result.exit_code}"
    if result.exit_code > 0:
        return "failed", f"{wanted.name} exited with {result.exit_code}"
    if wanted.harness and (sign := sign_of_failure(wanted.harness, f"{result.stdout}\n{result.stderr}")):
        return "failed", f"{wanted.name} exited with 0, but said {sign!r}"
    return "completed", None


def why_it_stopped(error: BaseException) -> tuple[EpisodeEnd, str]:
    """The typed end of an episode whose run an exception ended, and why."""
    match error:
        case KeyboardInterrupt():
            return "abandoned", "interrupted by Ctrl-C"
        case SystemExit() | Stopped():
            return "abandoned", "the launcher was told to end"
        case BrokenPipeError():
            return "abandoned", "nobody read its output any more"
        case OSError() | ValueError():
            return "failed", f"it could not be started: {error}"
        case _:
            return "abandoned", f"the launcher failed: {type(error).__name__}: {error}"


@dataclass
class _Episode:
    """An opened episode, and what is to be kept in it."""

    client: GatewayClient
    opened: OpenedEpisode
    wanted: EpisodeRun
    kept: dict[Stream, Kept]
    before: Snapshot | None = None
    diff: bytes | None = None
    problems: list[str] = field(default_factory=list)

    def look(self, scratch: Path) -> None:
        """Remember the working folder as it is now."""
        scratch.mkdir()
        take = take_own_snapshot if self.wanted.untrusted else take_snapshot
        try:
            self.before = take(self.wanted.workdir, scratch)
        except ChangesError as error:
            self.problems.append(f"no diff is kept: {error}")

    def judged(self, result: HarnessResult) -> Judged:
        """The run's end and worth."""
        end, reason = how_it_ended(self.wanted, result)
        if self.wanted.judge is None:
            return Judged(end, reason)
        out, err = (self.kept[stream].content()[0] for stream in ("stdout", "stderr"))
        return self.wanted.judge(Ran(self.opened, result, end, reason, out, err, self.changes() or b""))

    def close(self, judged: Judged, result: HarnessResult | None) -> list[str]:
        """Keep the artefacts, set the reward, end the episode, and say what of that failed."""
        try:
            self.client.add_artefacts(self.opened.id, [*self.artefacts(result), *judged.artefacts])
        except GatewayError as error:
            self.problems.append(f"its output is not kept: {error}")
        try:
            if judged.reward is not None:
                self.client.set_reward(self.opened.id, judged.reward, judged.components)
        except GatewayError as error:
            self.problems.append(f"its reward of {judged.reward:g} is not kept: {error}")
        try:
            self.client.end_episode(self.opened.id, judged.end, judged.reason)
        except GatewayError as error:
            self.problems.append(f"the episode was not ended as {judged.end}: {error}")
        return self.problems

    def changes(self) -> bytes | None:
        """The diff, made once; None: there is none."""
        if self.diff is None and self.before is not None:
            try:
                self.diff = changes_since(self.before)
            except ChangesError as error:
                self.before = None
                self.problems.append(f"no diff is kept: {error}")
        return self.diff

    def artefacts(self, result: HarnessResult | None) -> list[Artefact]:
        """``result`` None: the run was ended early."""
        found = [self._artefact(f"{stream}.txt", TEXT, *kept.content()) for stream, kept in self.kept.items()]
        if (diff := self.changes()) is not None:
            found.append(self._artefact("changes.diff", "text/x-diff", *cut(diff, ARTEFACT_LIMIT)))
        facts = {
            "exit_code": None if result is None else result.exit_code,
            "seconds": None if result is None else round(result.seconds, 3),
            "harness": self.wanted.name,
            **self.wanted.about,
            "problems": self.problems,
        }
        found.append(Artefact("run.json", "application/json", json.dumps(facts, indent=1).encode()))
        return found

    def _artefact(self, name: str, content_type: str, data: bytes, omitted: int) -> Artefact:
        # A tool may print its environment, and a token has no place in the store.
        return Artefact(name, content_type, data.replace(self.opened.token.encode(), b"<token>"), omitted)
