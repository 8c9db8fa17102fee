"""The gateway's control API for whoever runs agents: open an episode, end it, give its reward, ask for its state.

Rules of this module: one method per route, typed results, and one error whose text says what to do. Proxy variables
of this process are ignored: a shell that points a harness at the gateway must not send the operator's key through it.
"""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import httpx

from dragoman.store.records import Artefact, EpisodeEnd, JsonObject, SamplingProfile


class GatewayError(Exception):
    """The gateway could not be reached or refused. ``code`` is its own word for why, ``None`` when not reached."""

    def __init__(self, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class OpenedEpisode:
    id: str
    token: str
    api_key: str
    expires_at: float
    """Unix seconds."""
    proxy: Mapping[str, str]
    """Environment variables that point a harness at the episode through ``HTTPS_PROXY``."""
    base_url: Mapping[str, str]
    """Environment variables that do so by base URL and API key."""


@dataclass(frozen=True, slots=True)
class EpisodeState:
    end: EpisodeEnd | None
    """``None``: it is open."""
    end_reason: str | None
    calls: Mapping[str, int]
    """By status; only those that occur."""
    prompt_tokens: int
    completion_tokens: int
    reward: float | None = None


@dataclass(frozen=True, slots=True)
class GatewayStatus:
    version: str
    engine: str
    observes: str | None
    """Where calls go that are only looked at; ``None``: they are answered here."""
    model: str | None
    """``None``: no model is set and the engine has not been reached yet."""
    renderer: str | None
    template_has_tools: bool | None
    template_hash: str | None
    tokenizer_hash: str | None
    max_model_len: int | None
    max_reply_tokens: int | None
    """Cap on one reply; ``None``: an older gateway, which does not say."""
    policy_version: str | None
    """What calls are answered by; ``None``: an older gateway, which does not say."""
    store: str
    """The database's URL without its password."""
    outbox_depth: int
    """How many records the store does not have yet."""
    policy_error: str | None = None
    """Why the newest policy is not served; ``None``: it is."""
    engine_up: bool | None = None
    """Whether the engine answers the gateway now; ``None``: it has none, or an older gateway does not say."""
    started_at: float | None = None
    """Unix seconds; ``None``: an older gateway."""
    recording_error: str | None = None
    """Why records wait or no new call can be taken; ``None``: nothing is wrong."""


class GatewayClient:
    """Usable as a context manager; keeps one connection open."""

    def __init__(self, address: str, operator_key: str, timeout: float = 30.0) -> None:
        self.address = address.rstrip("/")
        self._http = httpx.Client(
            base_url=self.address,
            headers={"authorization": f"Bearer {operator_key}"},
            timeout=timeout,
            trust_env=False,
        )

    def __enter__(self) -> "GatewayClient":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def open_episode(
        self,
        *,
        task: str | None = None,
        group: str | None = None,
        expected: int | None = None,
        deadline_seconds: float | None = None,
        profile: SamplingProfile | None = None,
        temperature: float | None = None,
        metadata: JsonObject | None = None,
        ttl_seconds: float | None = None,
    ) -> OpenedEpisode:
        """Open an episode; ``None`` leaves a setting to the gateway. Raises ``GatewayError``."""
        settings = {
            "task": task,
            "group": group,
            "expected": expected,
            "deadline_seconds": deadline_seconds,
            "profile": profile,
            "temperature": temperature,
            "metadata": metadata,
            "ttl_seconds": ttl_seconds,
        }
        body = {name: value for name, value in settings.items() if value is not None}
        reply = self._ask("POST", "/dragoman/episodes", body)
        environment = reply["environment"]
        return OpenedEpisode(
            id=reply["id"],
            token=reply["token"],
            api_key=reply["api_key"],
            expires_at=reply["expires_at"],
            proxy=environment["proxy"],
            base_url=environment["base_url"],
        )

    def end_episode(self, episode_id: str, end: EpisodeEnd, reason: str | None = None) -> None:
        """Raises ``GatewayError`` (``not_found``, ``conflict`` when it has ended already)."""
        body: JsonObject = {"end": end} if reason is None else {"end": end, "reason": reason}
        self._ask("POST", f"/dragoman/episodes/{episode_id}/end", body)

    def set_reward(self, episode_id: str, reward: float, components: Mapping[str, float] | None = None) -> None:
        """Raises ``GatewayError``."""
        body: JsonObject = {"reward": reward}
        if components:
            body["components"] = dict(components)
        self._ask("POST", f"/dragoman/episodes/{episode_id}/reward", body)

    def add_artefacts(self, episode_id: str, artefacts: Sequence[Artefact]) -> None:
        """Keep what a run left behind; one of a name that is there already replaces it. Raises ``GatewayError``."""
        entries = [
            {
                "name": artefact.name,
                "content_type": artefact.content_type,
                "data": base64.b64encode(artefact.data).decode(),
                "omitted": artefact.omitted,
            }
            for artefact in artefacts
        ]
        self._ask("POST", f"/dragoman/episodes/{episode_id}/artefacts", {"artefacts": entries})

    def episode(self, episode_id: str) -> EpisodeState:
        """How an episode stands. Raises ``GatewayError`` (``not_found``)."""
        reply = self._ask("GET", f"/dragoman/episodes/{episode_id}", None)
        return EpisodeState(
            end=reply["end"],
            end_reason=reply["end_reason"],
            calls=reply["calls"],
            prompt_tokens=reply["prompt_tokens"],
            completion_tokens=reply["completion_tokens"],
            reward=reply.get("reward"),
        )

    def status(self) -> GatewayStatus:
        """Raises ``GatewayError``."""
        reply = self._ask("GET", "/dragoman/status", None)
        return GatewayStatus(
            version=reply["version"],
            engine=reply["engine"],
            observes=reply.get("observes"),
            model=reply.get("model"),
            renderer=reply.get("renderer"),
            template_has_tools=reply.get("template_has_tools"),
            template_hash=reply.get("template_hash"),
            tokenizer_hash=reply.get("tokenizer_hash"),
            max_model_len=reply.get("max_model_len"),
            max_reply_tokens=reply.get("max_reply_tokens"),
            policy_version=reply.get("policy_version"),
            policy_error=reply.get("policy_error"),
            store=reply["store"],
            outbox_depth=reply["outbox_depth"],
            recording_error=_recording_error(reply.get("recording") or {}),
            engine_up=reply.get("engine_up"),
            started_at=reply.get("started_at"),
        )

    def _ask(self, method: str, path: str, body: JsonObject | None) -> dict[str, Any]:
        try:
            response = self._http.request(method, path, json=body)
        except httpx.HTTPError as error:
            raise GatewayError(
                f"no gateway answers at {self.address} ({error or type(error).__name__}); "
                "start one with `dragoman serve`, or name it with --gateway or DRAGOMAN_GATEWAY"
            ) from error
        try:
            reply = response.json()
        except ValueError as error:
            raise GatewayError(
                f"{self.address} answered {response.status_code} without JSON; is it a Dragoman gateway?"
            ) from error
        if response.is_success and isinstance(reply, dict):
            return reply
        raise _refusal(self.address, response.status_code, reply)


def _refusal(address: str, status: int, reply: object) -> GatewayError:
    error = reply.get("error") if isinstance(reply, dict) else None
    code = str(error["code"]) if isinstance(error, dict) and "code" in error else None
    message = str(error["message"]) if isinstance(error, dict) and "message" in error else f"status {status}"
    if status == 401:
        message += (
            "; the operator key is in `operator.key` of the gateway's state folder: "
            "set DRAGOMAN_HOME to that folder, or DRAGOMAN_OPERATOR_KEY to the key"
        )
    if code is None:
        message += f" from {address}; is it a Dragoman gateway?"
    return GatewayError(message, code)


def _recording_error(recording: Mapping[str, Any]) -> str | None:
    errors = (recording.get("full"), *((recording.get(name) or {}).get("error") for name in ("queue", "outbox")))
    return next((str(error) for error in errors if error), None)
