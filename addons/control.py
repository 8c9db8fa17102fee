"""The control API under ``/dragoman``: whoever runs an agent opens, ends and scores its episode here.

Rules of this module: every route wants the operator key, and an episode's token opens none of them. Errors are
``{"error": {"code", "message"}}``. Opening an episode while the store is down is 503.
"""

import asyncio
import hmac
import math
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, get_args

import orjson
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

import dragoman
from dragoman.addons.artefact_json import artefact_json, read_artefacts
from dragoman.addons.bodies import read_json_object
from dragoman.addons.errors import (
    Conflict,
    DragomanError,
    Forbidden,
    InvalidRequest,
    NotFound,
    Overloaded,
    Unauthorized,
)
from dragoman.addons.hop import Hop
from dragoman.addons.identity import KEY_PREFIX, environments, new_token
from dragoman.certs.trust import trust_environment
from dragoman.home import state_folder
from dragoman.store import artefacts, episodes
from dragoman.store.errors import EpisodeEnded, EpisodeNotFound, GroupMismatch, StoreError
from dragoman.store.records import ArtefactInfo, EpisodeEnd, EpisodeInfo, EpisodeSpec, JsonObject, SamplingProfile

if TYPE_CHECKING:
    from dragoman.addons.gateway import Gateway

_OPEN_FIELDS = {"task", "group", "expected", "deadline_seconds", "profile", "temperature", "metadata", "ttl_seconds"}


def _text(body: JsonObject, name: str) -> str | None:
    value = body.get(name)
    if value is not None and (not isinstance(value, str) or not value):
        raise InvalidRequest(f"{name!r} must be a non-empty string, not {value!r}", field=name)
    return value


def _number(body: JsonObject, name: str, *, above: float) -> float | None:
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < above:
        raise InvalidRequest(f"{name!r} must be a finite number of at least {above:g}, not {value!r}", field=name)
    return float(value)


def read_spec(body: JsonObject, now: float) -> tuple[EpisodeSpec, float | None]:
    """The episode that an operator asks for, and its token's life in seconds (``None``: the default). Pure."""
    if unknown := sorted(set(body) - _OPEN_FIELDS):
        raise InvalidRequest(
            f"unknown field {unknown[0]!r}; known: {', '.join(sorted(_OPEN_FIELDS))}", field=unknown[0]
        )
    profile = body.get("profile", "train")
    if profile not in get_args(SamplingProfile):
        raise InvalidRequest(f"'profile' must be 'train' or 'as_asked', not {profile!r}", field="profile")
    metadata = body.get("metadata", {})
    if not isinstance(metadata, dict):
        raise InvalidRequest(f"'metadata' must be an object, not {metadata!r}", field="metadata")
    expected = _number(body, "expected", above=1)
    if expected is not None and expected != int(expected):
        raise InvalidRequest(f"'expected' must be a whole number, not {expected!r}", field="expected")
    deadline = _number(body, "deadline_seconds", above=0)
    temperature = _number(body, "temperature", above=0)
    spec = EpisodeSpec(
        task=_text(body, "task"),
        group=_text(body, "group"),
        expected=None if expected is None else int(expected),
        deadline=None if deadline is None else now + deadline,
        profile=profile,
        temperature=1.0 if temperature is None else temperature,
        metadata=metadata,
    )
    if spec.group is not None and spec.task is None:
        raise InvalidRequest("'group' needs a 'task'", field="group")
    return spec, _number(body, "ttl_seconds", above=1)


def episode_json(episode: EpisodeInfo) -> JsonObject:
    return {
        "id": episode.id,
        "task": episode.spec.task,
        "group": episode.spec.group,
        "opened_at": episode.opened_at,
        "expires_at": episode.expires_at,
        "ended_at": episode.ended_at,
        "end": episode.end,
        "end_reason": episode.end_reason,
        "reward": episode.reward,
    }


def routes(gateway: "Gateway") -> list[Route]:
    """The control API's routes, to be mounted at ``/dragoman``."""
    started_at = time.time()

    async def open_episode(body: JsonObject, hop: Hop, _: str) -> tuple[int, JsonObject]:
        spec, ttl = read_spec(body, time.time())
        token = new_token()
        lifetime = gateway.settings.token_ttl if ttl is None else ttl
        episode = await asyncio.to_thread(gateway.open_episode, spec, token, lifetime)
        trust = trust_environment(state_folder() / "certs")
        answer = episode_json(episode) | {
            "token": token,
            "api_key": KEY_PREFIX + token,
            "gateway": hop.address,
            "environment": environments(hop.address, token, trust),
        }
        return 201, answer

    async def get_episode(_: JsonObject, __: Hop, episode_id: str) -> tuple[int, JsonObject]:
        def read() -> JsonObject:
            with gateway.database.reading() as session:
                episode = episodes.get_episode(session, episode_id)
                sums = episodes.sum_calls(session, episode_id)
                kept = artefacts.list_artefacts(session, episode_id)
            return episode_json(episode) | {
                "calls": sums.by_status,
                "prompt_tokens": sums.prompt_tokens,
                "completion_tokens": sums.completion_tokens,
                "artefacts": [artefact_json(info) for info in kept],
            }

        return 200, await asyncio.to_thread(read)

    async def add_artefacts(body: JsonObject, _: Hop, episode_id: str) -> tuple[int, JsonObject]:
        given = read_artefacts(body)

        def write() -> list[ArtefactInfo]:
            with gateway.database.session() as session:
                artefacts.write_artefacts(session, episode_id, given, now=time.time())
                return artefacts.list_artefacts(session, episode_id)

        return 200, {"artefacts": [artefact_json(info) for info in await asyncio.to_thread(write)]}

    async def end_episode(body: JsonObject, _: Hop, episode_id: str) -> tuple[int, JsonObject]:
        end = body.get("end", "completed")
        if end not in get_args(EpisodeEnd):
            raise InvalidRequest(f"'end' must be one of {', '.join(get_args(EpisodeEnd))}, not {end!r}", field="end")
        reason = _text(body, "reason")

        def write() -> EpisodeInfo:
            with gateway.database.session() as session:
                return episodes.end_episode(session, episode_id, end, reason=reason, now=time.time())

        episode = await asyncio.to_thread(write)
        gateway.forget(episode_id)
        return 200, episode_json(episode)

    async def set_reward(body: JsonObject, _: Hop, episode_id: str) -> tuple[int, JsonObject]:
        reward = body.get("reward")
        components = body.get("components", {})
        if isinstance(reward, bool) or not isinstance(reward, int | float) or not math.isfinite(reward):
            raise InvalidRequest(f"'reward' must be a finite number, not {reward!r}", field="reward")
        if not isinstance(components, dict):
            raise InvalidRequest(f"'components' must be an object of numbers, not {components!r}", field="components")
        for name in components:
            if _number(components, name, above=-math.inf) is None:
                raise InvalidRequest(f"component {name!r} must be a number, not None", field=name)

        def write() -> EpisodeInfo:
            with gateway.database.session() as session:
                return episodes.set_reward(session, episode_id, reward, components=components, now=time.time())

        return 200, episode_json(await asyncio.to_thread(write))

    async def status(_: JsonObject, __: Hop, ___: str) -> tuple[int, JsonObject]:
        served = gateway.model.peek()
        return 200, {
            "version": dragoman.__version__,
            "started_at": started_at,
            "engine": gateway.settings.engine,
            "engine_up": None if gateway.settings.observe is not None else await gateway.engine.health(),
            "observes": gateway.settings.observe,
            "store": gateway.database.url,
            "outbox_depth": gateway.keeper.waiting,
            "recording": await asyncio.to_thread(gateway.keeper.status),
            "calls_running": len(gateway.running),
            "policy_version": gateway.policy.version,
            "policy_path": gateway.policy.serving.path if gateway.policy.serving else None,
            "policy_error": gateway.policy.error,
            "calls_held": gateway.policy.holding,
            "model": served.info.model if served else None,
            "max_model_len": served.info.max_model_len if served else None,
            "max_reply_tokens": gateway.settings.max_reply_tokens,
            "renderer": served.codec.renderer_name if served else None,
            "template_has_tools": served.codec.template_has_tools if served else None,
            "bridges": served.bridges if served else None,
            "template_hash": served.codec.template_hash if served else None,
            "tokenizer_hash": served.codec.tokenizer_hash if served else None,
        }

    async def unknown(_: JsonObject, __: Hop, ___: str) -> tuple[int, JsonObject]:
        raise NotFound("no such endpoint of the control API")

    Handler = Callable[[JsonObject, Hop, str], Awaitable[tuple[int, JsonObject]]]

    def guarded(handler: Handler) -> Callable[[Request], Awaitable[Response]]:
        async def respond(request: Request) -> Response:
            try:
                hop = gateway.hop(request)
                key = hop.credentials.operator
                if key is None or not hmac.compare_digest(key, gateway.settings.operator_key):
                    raise Unauthorized("the control API needs the operator key as `Authorization: Bearer dgo_…`")
                if hop.host is not None:
                    raise Forbidden("the control API is not reachable through the proxy")
                raw = await request.body()
                status_code, answer = await handler(
                    read_json_object(raw) if raw else {}, hop, request.path_params.get("episode_id", "")
                )
            except ClientDisconnect:
                return Response(status_code=499)
            except DragomanError as error:
                return _error(error)
            except EpisodeNotFound as error:
                return _error(NotFound(str(error)))
            except (EpisodeEnded, GroupMismatch) as error:
                return _error(Conflict(str(error)))
            except StoreError as error:
                return _error(Overloaded(str(error)))
            except ValueError as error:
                return _error(InvalidRequest(str(error)))
            except Exception as error:
                return _error(gateway.shown(error))
            return Response(orjson.dumps(answer), status_code, media_type="application/json")

        return respond

    def route(path: str, method: str, handler: Handler) -> Route:
        return Route(path, guarded(handler), methods=[method])

    return [
        route("/status", "GET", status),
        route("/episodes", "POST", open_episode),
        route("/episodes/{episode_id}", "GET", get_episode),
        route("/episodes/{episode_id}/end", "POST", end_episode),
        route("/episodes/{episode_id}/reward", "POST", set_reward),
        route("/episodes/{episode_id}/artefacts", "POST", add_artefacts),
        Route("/{rest:path}", guarded(unknown)),
    ]


def _error(error: DragomanError) -> Response:
    body: dict[str, Any] = {"error": {"code": error.code, "message": error.message, "field": error.field}}
    headers = {"retry-after": str(error.retry_after)} if error.retry_after is not None else {}
    return Response(orjson.dumps(body), error.status, headers, media_type="application/json")
