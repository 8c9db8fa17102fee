"""One sample of a task: a fresh workspace, a private home, an episode, a harness, the checks. What a worker does.

Rules of this module: ``run_one`` is all of it, with plain records in and out, so that a worker on any machine can call
it. It raises nothing but ``Stopped``: whatever else happens is an outcome with a typed end. The reward is set before
the episode ends.
"""

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import urlsplit

from dragoman.certs.trust import BUNDLE_FILE, CERTIFICATE_FILE
from dragoman.gateway_client import GatewayClient, GatewayError, OpenedEpisode
from dragoman.rollout.box import DEFAULT_RESOURCES, Box, Isolation, Resources, boxed
from dragoman.rollout.checks import Place
from dragoman.rollout.episode_run import EpisodeRun, Finished, Judged, Ran, run_in_episode
from dragoman.rollout.harnesses import COMMAND, find_harness
from dragoman.rollout.health import Health, PatientClient
from dragoman.rollout.kept import cut
from dragoman.rollout.launch import DEFAULT_PATH, Target, launch, launch_command
from dragoman.rollout.process import Launch, Limits, Stopped
from dragoman.rollout.ready import make_ready
from dragoman.rollout.rewards import Reward, find_reward
from dragoman.rollout.seen import EpisodeSeen, read_replies
from dragoman.rollout.setups import Mode
from dragoman.rollout.tasks import FunctionCheck, JudgeCheck, RegexCheck, Task
from dragoman.rollout.workspaces import Made
from dragoman.store.database import Database
from dragoman.store.errors import StoreError
from dragoman.store.records import ARTEFACT_LIMIT, Artefact, EpisodeEnd, SamplingProfile

__all__ = ["Outcome", "Sample", "Setting", "group_name", "run_one", "wants_replies"]

MARGIN = 300.0
"""Seconds beyond all limits until a group's deadline: for copying, storing, and a busy machine."""
TEXT = "text/plain; charset=utf-8"


@dataclass(frozen=True)
class Sample:
    """What is to be run once."""

    task: Task
    harness: str
    """A name of the harness table, or ``command``."""
    number: int
    """0 to ``Setting.samples`` - 1."""
    round: int | None = None
    """Of a run that goes on for ever: each round has groups of its own. None: there is one only."""

    @property
    def key(self) -> tuple[str, str, int, int | None]:
        return self.task.id, self.harness, self.number, self.round


@dataclass(frozen=True)
class Setting:
    """How all samples of a run are run."""

    run: str
    """The run's name; with harness and round it names the groups."""
    gateway: str
    """``http://host:port``."""
    operator_key: str = field(repr=False)
    samples: int
    """Episodes of each group."""
    mode: Mode = "proxy"
    variant: str | None = None
    model: str | None = None
    command: tuple[str, ...] = ()
    """The program for ``command``; ``{prompt}`` in an argument is replaced. The prompt is on its standard input too."""
    installed: Mapping[str, Path] = field(default_factory=dict)
    """Harness → the folder that it is installed in."""
    certs: Path = Path()
    """The folder with the gateway's public certificates."""
    time_limit: float = 1800.0
    """Seconds for a harness whose task names none."""
    check_time_limit: float = 300.0
    """Seconds for each check that names none, and for a task's setup."""
    deadline: float | None = None
    """Seconds from an episode's opening until what is missing of its group counts as abandoned. None: by the limits."""
    temperature: float | None = None
    profile: SamplingProfile = "train"
    max_turns: int | None = None
    max_reply_tokens: int = 4096
    context_tokens: int = 32768
    isolation: Isolation = "limits"
    resources: Resources = DEFAULT_RESOURCES
    output_bytes: int = 256 << 20
    """A harness that prints more is ended."""
    disk_bytes: int = 4 << 30
    """A harness whose workspace and home grow beyond is ended."""
    hidden: tuple[Path, ...] = ()
    """Folders and files that agents must not see, beside the task files' own."""
    store: str | None = None
    """URL of the store, for checks that read replies. None: it cannot be read from here."""
    path: str = DEFAULT_PATH
    env: Mapping[str, str] = field(default_factory=dict)
    """Further variables for the harness."""
    scratch: Path | None = None
    """Where workspaces are made. None: the system's temporary folder."""


@dataclass(frozen=True)
class Outcome:
    """What became of one sample."""

    task: str
    harness: str
    number: int
    round: int | None
    episode_id: str | None
    """None: none could be opened."""
    end: EpisodeEnd
    reason: str | None
    reward: float | None = None
    components: Mapping[str, float] = field(default_factory=dict)
    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    seconds: float = 0.0
    again: bool = False
    """The sample is to be run again: what ended it was neither the harness's doing nor the model's."""
    problems: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[str, str, int, int | None]:
        return self.task, self.harness, self.number, self.round


def never() -> bool:
    return False


def group_name(setting: Setting, sample: Sample) -> str:
    """One group for each task, harness and round of a run."""
    name = f"{setting.run}/{sample.harness}"
    return name if sample.round is None else f"{name}/{sample.round}"


def run_one(
    sample: Sample,
    setting: Setting,
    health: Health,
    *,
    stopped: Callable[[], bool] = never,
    on_opened: Callable[[Sample, str], None] = lambda sample, episode_id: None,
    connect: Callable[[str, str, Health, Callable[[], bool]], GatewayClient] = PatientClient,
) -> Outcome:
    """Run one sample to its end. Waits while the gateway or the engine is away.

    ``on_opened`` is told the episode's id at once. ``connect`` makes the client that opens and ends the episode.
    Raises ``Stopped`` when ``stopped`` says so; the episode, if there is one, has then been ended as ``abandoned``.
    """
    health.wait(stopped)
    began, opened = time.monotonic(), list[OpenedEpisode]()
    folder = Path(tempfile.mkdtemp(prefix="dragoman-rollout-", dir=setting.scratch)).resolve()
    work = _Work(sample, setting, health, folder, stopped, began)

    def note(episode: OpenedEpisode) -> None:
        opened.append(episode)
        on_opened(sample, episode.id)

    try:
        with connect(setting.gateway, setting.operator_key, health, stopped) as client:
            try:
                finished = run_in_episode(client, work.wanted(), on_opened=note)
                return work.outcome(client, finished)
            except (ValueError, OSError, GatewayError) as error:
                return work.failed(opened[0].id if opened else None, "failed", str(error))
            except Stopped:
                raise
            except Exception as error:  # a defect of ours must not end all other samples
                why = f"the launcher failed: {type(error).__name__}: {error}"
                return work.failed(opened[0].id if opened else None, "abandoned", why)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@dataclass
class _Work:
    sample: Sample
    setting: Setting
    health: Health
    folder: Path
    stopped: Callable[[], bool]
    began: float
    made: Made | None = None
    again: bool = False

    @property
    def workspace(self) -> Path:
        return self.folder / "work"

    @property
    def home(self) -> Path:
        return self.folder / "home"

    def wanted(self) -> EpisodeRun:
        """What is to be run, in what episode."""
        sample, setting, task = self.sample, self.setting, self.sample.task
        harness = None if sample.harness == COMMAND else find_harness(sample.harness)
        about = {"run": setting.run, "sample": sample.number, "mode": setting.mode, "isolation": setting.isolation}
        if harness is not None:
            about |= {"version": harness.version, "variant": setting.variant or next(iter(harness.variants), None)}
        about |= {"round": sample.round, "split": task.split, "model": setting.model, "task": task.metadata or None}
        limit = task.time_limit or setting.time_limit
        checks = sum(check.time_limit or setting.check_time_limit for check in task.checks)
        return EpisodeRun(
            name=sample.harness,
            harness=harness,
            prepare=self.prepare,
            workdir=self.workspace,
            timeout=limit,
            about={name: value for name, value in about.items() if value is not None},
            home=self.home,
            task=task.id,
            group=group_name(setting, sample),
            expected=setting.samples,
            deadline_seconds=setting.deadline or limit + checks + setting.check_time_limit + MARGIN,
            profile=setting.profile,
            temperature=setting.temperature,
            make=self.make,
            judge=self.judge,
            untrusted=True,
            limits=Limits(setting.output_bytes, setting.disk_bytes, (self.workspace, self.home)),
            stopped=self.stopped,
        )

    def make(self) -> None:
        """Fill the workspace and run the task's setup in it. Raises ``NotReady``."""
        self.home.mkdir(mode=0o700)
        setting = self.setting
        limits = Limits(setting.output_bytes, setting.disk_bytes, (self.workspace, self.home))
        self.made = make_ready(
            self.sample.task,
            self.workspace,
            self.home,
            path=setting.path,
            resources=setting.resources,
            limits=limits,
            time_limit=setting.check_time_limit,
            stopped=self.stopped,
        )

    def prepare(self, token: str, home: Path) -> Launch:
        sample, setting = self.sample, self.setting
        inside = setting.isolation == "namespaces"
        certs = self.folder / "certs"
        certs.mkdir(exist_ok=True)
        for name in (CERTIFICATE_FILE, BUNDLE_FILE):  # public ones; the folder that they are from is hidden
            if (setting.certs / name).is_file():
                shutil.copyfile(setting.certs / name, certs / name)
        address, (host, port) = setting.gateway, _host_port(setting.gateway)
        target = Target(
            f"http://127.0.0.1:{port}" if inside else address,
            token,
            setting.mode,
            certs,
            max_reply_tokens=setting.max_reply_tokens,
            context_tokens=setting.context_tokens,
        )
        extra = dict(setting.env)
        if not inside:
            (home / "tmp").mkdir(parents=True, exist_ok=True, mode=0o700)
            extra = {"TMPDIR": str(home / "tmp"), **extra}
        readable = [certs]
        if sample.harness == COMMAND:
            words = tuple(word.replace("{prompt}", sample.task.prompt) for word in setting.command)
            found = launch_command(words, target, home=home, workdir=self.workspace, path=setting.path, extra=extra)
            found = replace(found, stdin=sample.task.prompt)
        else:
            installed = setting.installed[sample.harness]
            readable.append(installed.parent)
            found = launch(
                find_harness(sample.harness),
                target,
                installed=installed,
                prompt=sample.task.prompt,
                home=home,
                workdir=self.workspace,
                variant=setting.variant,
                model=setting.model,
                max_turns=setting.max_turns,
                path=setting.path,
                extra=extra,
            )
        box = Box(
            setting.isolation,
            setting.resources,
            writable=(self.workspace, home),
            readable=tuple(readable),
            hidden=hidden_from_agents(sample.task, setting),
            gateway=(host, port),
        )
        return boxed(found, box)

    def judge(self, ran: Ran) -> Judged:
        """The checks, and what they say of the run."""
        if trouble := self.trouble(ran):
            self.again = True
            return Judged("abandoned", f"{trouble} ({ran.reason or 'the harness ended all the same'})")
        task, setting = self.sample.task, self.setting
        assert self.made is not None
        scratch = self.folder / "checks"
        scratch.mkdir()
        place = Place(
            self.workspace,
            self.made.steering,
            scratch,
            setting.isolation,
            setting.resources,
            most_bytes=setting.disk_bytes,
            path=setting.path,
            hidden=hidden_from_agents(task, setting),
            stopped=self.stopped,
        )
        seen = see_episode(task, ran, self.sample.harness, setting.store)
        reward = find_reward(task, seen, place, time_limit=setting.check_time_limit)
        return judged(ran.end, ran.reason, reward)

    def trouble(self, ran: Ran) -> str | None:
        """Why the run's end says nothing of the harness and the model; None: it does.

        A harness that came through an outage has done its work; one that ended well though its calls failed has not.
        """
        problem = self.health.trouble_since(self.began)
        if ran.end == "completed" and problem is None:
            return None
        try:
            with PatientClient(self.setting.gateway, self.setting.operator_key, self.health, self.stopped) as client:
                failed = client.episode(ran.opened.id).calls.get("failed", 0)
        except GatewayError as error:
            return str(error)
        if ran.end == "completed" and not failed:
            return None
        problem = self.health.trouble_since(self.began)  # asking may have been what found it out
        return problem or (f"{failed} of its calls failed in the engine or the gateway" if failed else None)

    def failed(self, episode_id: str | None, end: EpisodeEnd, reason: str) -> Outcome:
        """It did not come to a run, or not to the end of it."""
        if self.stopped() and episode_id is None:
            raise Stopped
        task, harness, number, round_ = self.sample.key
        seconds = time.monotonic() - self.began
        return Outcome(task, harness, number, round_, episode_id, end, reason, seconds=seconds)

    def outcome(self, client: GatewayClient, finished: Finished) -> Outcome:
        assert finished.judged is not None
        end, reason, problems = finished.judged.end, finished.judged.reason, list(finished.problems)
        calls, prompt, completion = 0, 0, 0
        try:
            state = client.episode(finished.episode_id)
        except GatewayError as error:
            problems.append(f"its calls are not counted: {error}")
        else:
            calls = sum(state.calls.values())
            prompt, completion = state.prompt_tokens, state.completion_tokens
            if state.end is not None and state.end != end:  # its group's deadline came first
                end, reason, self.again = state.end, state.end_reason, state.end == "abandoned"
        return Outcome(
            *self.sample.key,
            finished.episode_id,
            end,
            reason,
            finished.judged.reward,
            finished.judged.components,
            calls,
            prompt,
            completion,
            time.monotonic() - self.began,
            self.again,
            tuple(problems),
        )


def judged(end: EpisodeEnd, reason: str | None, reward: Reward) -> Judged:
    """A run's end with what its checks said. A check that could not be made fails the run: it has no reward."""
    log = Artefact("checks.txt", TEXT, *cut(reward.log.encode(errors="replace"), ARTEFACT_LIMIT))
    if reward.problem is not None and end == "completed":
        end, reason = "failed", reward.problem
    return Judged(end, reason, reward.value, reward.components, (log,) if reward.log else ())


def see_episode(task: Task, ran: Ran, harness: str, store: str | None) -> EpisodeSeen:
    """What checks are told; replies are read from the store only where a check of the task wants them."""
    replies = None
    if store is not None and wants_replies(task):
        try:
            database = Database.open(store)
            try:
                replies = read_replies(database, ran.opened.id)
            finally:
                database.close()
        except StoreError:
            replies = None
    return EpisodeSeen(
        ran.opened.id,
        task.id,
        task.prompt,
        task.metadata,
        harness,
        ran.end,
        ran.result.exit_code,
        ran.result.seconds,
        ran.stdout.decode(errors="replace"),
        ran.stderr.decode(errors="replace"),
        ran.changes.decode(errors="replace"),
        replies,
    )


def wants_replies(task: Task) -> bool:
    """Whether a check of the task looks at what the model said."""
    return any(
        isinstance(check, FunctionCheck | JudgeCheck) or (isinstance(check, RegexCheck) and check.where == "reply")
        for check in task.checks
    )


def hidden_from_agents(task: Task, setting: Setting) -> tuple[Path, ...]:
    """The task file's folder, with the tests and answers beside it, unless something that is needed lies in it.

    The other samples, too: the folder in which workspaces are made.
    """
    hidden = (*setting.hidden, *([setting.scratch] if setting.scratch else []))
    if task.source is None:
        return hidden
    folder = task.source.parent
    needed = [Path(one) for one in os.environ.get("PATH", "").split(":") if one]
    needed += [*setting.installed.values(), Path(__file__), *([setting.scratch] if setting.scratch else [])]
    inside = any(path.resolve().is_relative_to(folder) for path in needed)
    return (*hidden, task.source if inside else folder)


def _host_port(address: str) -> tuple[str, int]:
    parts = urlsplit(address)
    if parts.scheme != "http" or not parts.hostname or not parts.port:
        raise ValueError(f"The gateway's address {address!r} is not of the form http://host:port.")
    return parts.hostname, parts.port
