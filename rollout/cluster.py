"""Samples on a Ray cluster: the runner stays here, each sample is one Ray task on any node.

Rules of this module: Ray is imported inside functions, and Ray never repeats a task by itself. Only the driver opens
episodes, when a worker asks for one, so it knows of each whatever becomes of the worker. A sample whose node or worker
is lost has its episode abandoned from here, and the runner runs it again in the same group. Whichever end
reached the gateway first counts: a worker that was thought lost cannot end its episode a second time, and one that had
ended it before it was lost is not run again. So a sample has one result, even if its task ran twice.

A node needs this package (the same Python and Ray), its harnesses installed, folders that tasks name at the same
paths, and a way to the gateway. Certificates travel with each sample; so does the operator key: a cluster is trusted.
"""

import contextlib
import logging
import os
import secrets
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dragoman.certs.trust import BUNDLE_FILE, CERTIFICATE_FILE
from dragoman.gateway_client import GatewayClient, GatewayError, OpenedEpisode
from dragoman.rollout.box import find_isolation
from dragoman.rollout.harnesses import COMMAND, find_harness
from dragoman.rollout.health import Health, PatientClient
from dragoman.rollout.install import installed
from dragoman.rollout.process import Stopped
from dragoman.rollout.runner import RunOne
from dragoman.rollout.samples import Outcome, Sample, Setting, run_one

__all__ = ["Cluster", "ClusterError", "Unfit", "connected", "on_cluster", "settle"]

LOOK_EVERY = 0.25
"""Seconds between looks of the driver at a sample."""
ASK_EVERY = 1.0
"""Seconds between a worker's questions whether it shall stop."""
ANSWER_EVERY = 0.1
"""Seconds between its looks for the episode that it asked for."""
INSTALL = "pip install 'dragoman[cluster]' on every node, each with the same Python"


class ClusterError(Exception):
    """There is no Ray, or no cluster at the address."""


class Unfit(Exception):
    """A node cannot run the sample; another one may."""


@dataclass(frozen=True)
class Cluster:
    """A connection to Ray, and the actor through which workers and driver talk."""

    board: Any
    """A handle of ``Board``, on the driver's own node."""
    nodes: int
    cpus: float


@dataclass(frozen=True)
class Parcel:
    """What goes to a node."""

    sample: Sample
    setting: Setting
    ticket: str
    """Names one try of one sample."""
    certificates: Mapping[str, bytes]
    """File name → content."""


class Board:
    """What workers ask of the driver while they run, and what it answers. An actor; nothing here blocks."""

    def __init__(self) -> None:
        self.begun: set[str] = set()
        self.unwanted: set[str] = set()
        self.asked: dict[str, dict[str, Any]] = {}
        self.answers: dict[str, Answer] = {}

    def begin(self, ticket: str) -> bool:
        """Whether the try is still wanted."""
        self.begun.add(ticket)
        return ticket not in self.unwanted

    def wanted(self, ticket: str) -> bool:
        return ticket not in self.unwanted

    def stop(self, ticket: str) -> bool:
        """Whether it had begun."""
        self.unwanted.add(ticket)
        return ticket in self.begun

    def ask(self, ticket: str, settings: dict[str, Any]) -> None:
        """A worker wants an episode, with what ``GatewayClient.open_episode`` takes."""
        self.asked[ticket] = settings

    def settings(self, ticket: str) -> dict[str, Any] | None:
        return self.asked.get(ticket)

    def give(self, ticket: str, answer: "Answer") -> None:
        self.answers[ticket] = answer

    def answer(self, ticket: str) -> "Answer | None":
        return self.answers.get(ticket)

    def forget(self, ticket: str) -> None:
        for kept in (self.asked, self.answers):
            kept.pop(ticket, None)
        self.begun.discard(ticket)
        self.unwanted.discard(ticket)


Answer = OpenedEpisode | tuple[str, str | None]
"""The episode, or message and code of the gateway's refusal."""


@contextlib.contextmanager
def connected(address: str) -> Iterator[Cluster]:
    """Connect to a cluster (``host:port``, ``ray://…``, ``auto``), or start one on this machine (``local``).

    Raises ``ClusterError``.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is reported to anybody
    try:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
    except ImportError as error:
        raise ClusterError(f"Ray is not installed ({error}): {INSTALL}") from error
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, ValueError, RuntimeError) as error:
        remedy = "start one with `ray start --head`, or take --ray local"
        raise ClusterError(f"no Ray cluster answers at {address!r} ({error}): {remedy}") from error
    try:
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        board = ray.remote(Board).options(num_cpus=0, scheduling_strategy=here).remote()
        library: Any = ray  # these two have no types
        alive = [node for node in library.nodes() if node["Alive"]]
        yield Cluster(board, len(alive), float(library.cluster_resources().get("CPU", 0)))
    finally:
        ray.shutdown()


def on_cluster(cluster: Cluster, health: Health, *, cpus: float = 1.0) -> RunOne:
    """Samples are run on the cluster's nodes, each with ``cpus`` of Ray's CPUs for itself.

    ``health`` is the driver's own; workers watch the gateway from where they are.
    """
    import ray

    task: Any = ray.remote(run_there)
    # Spread, so that losing a node costs few samples.
    task = task.options(max_retries=0, num_cpus=cpus, scheduling_strategy="SPREAD")
    board = cluster.board

    def work(
        sample: Sample, setting: Setting, stopped: Callable[[], bool], on_opened: Callable[[Sample, str], None]
    ) -> Outcome:
        health.wait(stopped)
        parcel = Parcel(sample, setting, secrets.token_hex(8), read_certificates(setting.certs))
        running = task.remote(parcel, board)
        episode_id: str | None = None
        outcome: Outcome | None = None
        answered = told = False
        try:
            while True:
                done, _ = ray.wait([running], timeout=LOOK_EVERY)
                if done:
                    break
                if not answered and (settings := ray.get(board.settings.remote(parcel.ticket))) is not None:
                    answered = True
                    answer = open_for(setting, settings, health, stopped)
                    if isinstance(answer, OpenedEpisode):
                        episode_id = answer.id
                        on_opened(sample, answer.id)
                    board.give.remote(parcel.ticket, answer)
                if stopped() and not told:
                    told = True
                    if not ray.get(board.stop.remote(parcel.ticket)):
                        ray.cancel(running)  # it waits for a node that may never come
            outcome = ray.get(running)
        except ray.exceptions.TaskCancelledError:
            raise Stopped from None
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, KeyboardInterrupt):  # it began in the moment in which it was cancelled
                raise Stopped from None
            return disturbed(sample, episode_id, f"a node could not run it: {error.cause}")
        except ray.exceptions.RayError as error:
            with PatientClient(setting.gateway, setting.operator_key, health, stopped) as client:
                return settle(client, sample, episode_id, f"its node or worker was lost: {type(error).__name__}")
        finally:
            board.forget.remote(parcel.ticket)
        if outcome is None:
            raise Stopped
        return outcome

    return work


def open_for(setting: Setting, settings: dict[str, Any], health: Health, stopped: Callable[[], bool]) -> Answer:
    """The episode that a worker asked for."""
    try:
        with PatientClient(setting.gateway, setting.operator_key, health, stopped) as client:
            return client.open_episode(**settings)
    except GatewayError as error:
        return str(error), error.code


def settle(client: GatewayClient, sample: Sample, episode_id: str | None, why: str) -> Outcome:
    """What a sample came to whose worker was lost: abandoned from here, unless its episode had ended before."""
    if episode_id is None:
        return disturbed(sample, None, why)
    try:
        try:
            client.end_episode(episode_id, "abandoned", why)
        except GatewayError as error:
            if error.code != "conflict":
                raise
        state = client.episode(episode_id)
    except GatewayError as error:
        return disturbed(sample, episode_id, f"{why}; {error}")
    return Outcome(
        *sample.key,
        episode_id,
        state.end or "abandoned",
        state.end_reason,
        state.reward,
        calls=sum(state.calls.values()),
        prompt_tokens=state.prompt_tokens,
        completion_tokens=state.completion_tokens,
        again=state.end == "abandoned",
    )


def disturbed(sample: Sample, episode_id: str | None, why: str) -> Outcome:
    """Neither the harness nor the model is to blame."""
    return Outcome(*sample.key, episode_id, "abandoned", why, again=True)


def read_certificates(folder: Path) -> dict[str, bytes]:
    """The gateway's public certificates; those that there are."""
    paths = [folder / name for name in (CERTIFICATE_FILE, BUNDLE_FILE)]
    return {path.name: path.read_bytes() for path in paths if path.is_file()}


def run_there(parcel: Parcel, board: Any) -> Outcome | None:
    """Runs on a node. None: it was told to stop, and its episode, if there is one, is abandoned. Raises ``Unfit``."""
    import ray

    if not ray.get(board.begin.remote(parcel.ticket)):
        return None
    over, stop = threading.Event(), threading.Event()

    def ask() -> None:
        while not over.wait(ASK_EVERY):
            try:
                wanted = ray.get(board.wanted.remote(parcel.ticket))
            except ray.exceptions.RayError:
                wanted = False  # the driver is gone
            if not wanted:
                stop.set()
                return

    class Asking(PatientClient):
        """Opens episodes through the driver."""

        def open_episode(self, **settings: Any) -> OpenedEpisode:
            ray.get(board.ask.remote(parcel.ticket, settings))
            while not stop.wait(ANSWER_EVERY):
                answer = ray.get(board.answer.remote(parcel.ticket))
                if isinstance(answer, OpenedEpisode):
                    return answer
                if answer is not None:
                    raise GatewayError(*answer)
            raise Stopped

    asking = threading.Thread(target=ask, name="wanted", daemon=True)
    with tempfile.TemporaryDirectory(prefix="dragoman-certs-") as certs:
        setting = fitted(parcel, Path(certs))
        with GatewayClient(setting.gateway, setting.operator_key) as client:
            health = Health(client, lambda line: None)
            asking.start()
            try:
                with health.watching():
                    return run_one(parcel.sample, setting, health, stopped=stop.is_set, connect=Asking)
            except Stopped:
                return None
            finally:
                over.set()
                asking.join()


def fitted(parcel: Parcel, certs: Path) -> Setting:
    """The setting with this node's own folders. Raises ``Unfit``."""
    for name, content in parcel.certificates.items():
        (certs / name).write_bytes(content)
    setting, name = parcel.setting, parcel.sample.harness
    try:
        isolation = find_isolation(setting.isolation)
    except ValueError as error:
        raise Unfit(f"{os.uname().nodename}: {error}; or give --isolation limits") from error
    found = dict(setting.installed)
    if name != COMMAND and not found[name].is_dir():
        folder = installed(find_harness(name))
        if folder is None:
            raise Unfit(f"{os.uname().nodename}: {name} is not installed there: `dragoman harness install {name}`")
        found[name] = folder
    return replace(setting, certs=certs, installed=found, isolation=isolation)
