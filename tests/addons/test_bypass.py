"""Ways around the gate: each is tried on a real mitmdump, each is refused, and nobody's episode has anything of it.

Whatever an attempt names (a port of this machine, somebody else's episode, the control API, the app's own port), three
things are looked at when all are over: the canary, a listener that nothing may reach; the victim's episode; and every
byte that was written.
"""

import base64
import gzip
import re
import socket
import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import httpx
import pytest

from dragoman.gateway_client import OpenedEpisode
from dragoman.home import operator_key
from tests.gateway import RunningGateway, running_gateway
from tests.scripted import Scripted, scripted_engine

SECRET = "sk-marked-fake-key-0f1e2d3c4b5a"
BODY = b'{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"Hi"}]}'


@dataclass
class Canary:
    port: int
    reached: list[bytes] = field(default_factory=list)


@dataclass(frozen=True)
class World:
    gateway: RunningGateway
    canary: Canary
    victim: OpenedEpisode
    attacker: OpenedEpisode
    ended: OpenedEpisode
    operator: str
    app_port: int

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = self.gateway.address.removeprefix("http://").partition(":")
        return host, int(port)

    def fill(self, text: str) -> bytes:
        """``text`` with the names of this world; lines end with LF there."""
        known = {
            "CANARY": str(self.canary.port),
            "PORT": str(self.address[1]),
            "VICTIM_ID": self.victim.id,
            "VICTIM": self.victim.token,
            "ATTACKER_PROXY": base64.b64encode(f"{self.attacker.token}:x".encode()).decode(),
            "ATTACKER": self.attacker.token,
            "ENDED": self.ended.token,
            "SECRET": SECRET,
            "LENGTH": str(len(BODY)),
        }
        for name, value in known.items():
            text = text.replace(f"<{name}>", value)
        return text.replace("\n", "\r\n").encode()


@pytest.fixture(scope="module")
def canary() -> Iterator[Canary]:
    """Any connection at all is noted, and so is what it says first."""
    listener = socket.create_server(("127.0.0.1", 0))
    canary = Canary(listener.getsockname()[1])

    def listen() -> None:
        while True:
            connection, _ = listener.accept()
            with connection:
                connection.settimeout(2)
                try:
                    said = connection.recv(100)
                except OSError:
                    said = b"(silence)"
                if said == b"stop":
                    return
                canary.reached.append(said)

    thread = threading.Thread(target=listen)
    thread.start()
    yield canary
    with socket.create_connection(("127.0.0.1", canary.port)) as connection:
        connection.sendall(b"stop")
    thread.join()
    listener.close()


@pytest.fixture(scope="module")
def engine() -> Iterator[Scripted]:
    with scripted_engine([{"text": "Hello there.", "repeat": True}]) as running:
        yield running


@pytest.fixture(scope="module", params=["block", "pass"])
def world(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, engine: Scripted, canary: Canary
) -> Iterator[World]:
    """Under both policies: with ``pass`` other hosts may be asked, but this machine may not."""
    folder = tmp_path_factory.mktemp("bypass")
    settings = {"dragoman_egress": request.param, "flow_detail": "2"}
    with running_gateway(folder / "home", engine.address, "-w", str(folder / "saved.flow"), settings=settings) as one:
        ended = one.open()
        with one.client() as client:
            client.end_episode(ended.id, "completed")
        yield World(one, canary, one.open(), one.open(), ended, operator_key(one.home), one.app_port)


def exchange(address: tuple[str, int], *messages: bytes, then_close: bool = False) -> bytes:
    """Send each message and read its answer. ``then_close``: say after the last one that no more comes, so that the
    other side has to close instead of waiting for the rest."""
    heard = b""
    with socket.create_connection(address, timeout=10) as connection:
        for message in messages:
            connection.sendall(message)
            if then_close and message is messages[-1]:
                connection.shutdown(socket.SHUT_WR)
            connection.settimeout(10)
            try:
                while piece := connection.recv(65536):
                    heard += piece
                    if _is_complete(heard):
                        break
                else:
                    return heard
            except TimeoutError:
                return heard + b"(silence)"
            except ConnectionError:
                return heard
    return heard


def _is_complete(heard: bytes) -> bool:
    head, blank, body = heard.rpartition(b"HTTP/1.")[2].partition(b"\r\n\r\n")
    if not blank:
        return False
    lengths = [line for line in head.lower().splitlines() if line.startswith(b"content-length:")]
    if lengths:
        return len(body) >= int(lengths[0].partition(b":")[2])
    return b"chunked" not in head.lower() or body.endswith(b"0\r\n\r\n")


def statuses(heard: bytes) -> list[int]:
    return [int(status) for status in re.findall(rb"HTTP/1\.[01] (\d{3}) ", heard)]


POST = "Content-Type: application/json\nContent-Length: <LENGTH>\n\n" + BODY.decode()
AUTH = "Proxy-Authorization: Basic <ATTACKER_PROXY>\n"
LOCAL = "Host: 127.0.0.1:<PORT>\n"
REFUSED = {400, 401, 403, 404, 405, 407, 421, 502}

ORIGIN_FORM = {
    "no credential": f"POST /v1/messages HTTP/1.1\n{LOCAL}{POST}",
    "a provider's key alone": f"POST /v1/messages HTTP/1.1\n{LOCAL}x-api-key: <SECRET>\n{POST}",
    "an empty token in the path": f"POST /e//v1/messages HTTP/1.1\n{LOCAL}{POST}",
    "a token that is cut": f"POST /e/0123456789abcdef/v1/messages HTTP/1.1\n{LOCAL}{POST}",
    "a token with a null byte": f"POST /e/<VICTIM>%00/v1/messages HTTP/1.1\n{LOCAL}{POST}",
    "a token and an encoded slash": f"POST /e/<VICTIM>%2fv1/messages HTTP/1.1\n{LOCAL}{POST}",
    "a made-up token": f"POST /v1/messages HTTP/1.1\n{LOCAL}x-api-key: dgm_{'0' * 32}\n{POST}",
    "the hash of a token": f"POST /v1/messages HTTP/1.1\n{LOCAL}x-api-key: dgm_{'ab' * 32}\n{POST}",
    "a pattern for a token": f"POST /v1/messages HTTP/1.1\n{LOCAL}x-api-key: dgm_%\n{POST}",
    "an ended episode": f"POST /v1/messages HTTP/1.1\n{LOCAL}x-api-key: dgm_<ENDED>\n{POST}",
    "path and key disagree": f"POST /e/<VICTIM>/v1/messages HTTP/1.1\n{LOCAL}x-api-key: dgm_<ATTACKER>\n{POST}",
    "query and key disagree": f"POST /v1/messages?key=dgm_<VICTIM> HTTP/1.1\n{LOCAL}x-api-key: dgm_<ATTACKER>\n{POST}",
    "two keys in the query": f"POST /v1/messages?key=dgm_<VICTIM>&key=dgm_<ATTACKER> HTTP/1.1\n{LOCAL}{POST}",
    "two keys in two headers": (
        f"POST /v1/messages HTTP/1.1\n{LOCAL}x-api-key: dgm_<ATTACKER>\nauthorization: Bearer dgm_<VICTIM>\n{POST}"
    ),
    "one header twice": (
        f"POST /v1/messages HTTP/1.1\n{LOCAL}x-api-key: dgm_<ATTACKER>\nx-api-key: dgm_<VICTIM>\n{POST}"
    ),
    "a path in a path": f"POST /e/<ATTACKER>/e/<VICTIM>/v1/messages HTTP/1.1\n{LOCAL}{POST}",
    "a ticket from outside": f"POST /v1/messages HTTP/1.1\n{LOCAL}x-dragoman-ticket: {'0' * 32}\n{POST}",
    "a ticket in capitals": f"POST /v1/messages HTTP/1.1\n{LOCAL}X-DRAGOMAN-TICKET: {'0' * 32}\n{POST}",
    "length and chunks at once": (
        f"POST /v1/messages HTTP/1.1\n{LOCAL}x-api-key: dgm_<ATTACKER>\nTransfer-Encoding: chunked\n{POST}"
    ),
    "two lengths": f"POST /v1/messages HTTP/1.1\n{LOCAL}x-api-key: dgm_<ATTACKER>\nContent-Length: 3\n{POST}",
    "control: no key": f"POST /dragoman/episodes HTTP/1.1\n{LOCAL}{POST}",
    "control: an episode's key": f"POST /dragoman/episodes HTTP/1.1\n{LOCAL}x-api-key: dgm_<ATTACKER>\n{POST}",
    "control: end another's episode": (
        f"POST /dragoman/episodes/<VICTIM_ID>/end HTTP/1.1\n{LOCAL}Authorization: Bearer dgm_<ATTACKER>\n{POST}"
    ),
    "control: reward another's episode": (
        f"POST /dragoman/episodes/<VICTIM_ID>/reward HTTP/1.1\n{LOCAL}Authorization: Bearer dgm_<ATTACKER>\n{POST}"
    ),
    "control: reward one's own episode": (
        f"POST /dragoman/episodes/<VICTIM_ID>/reward HTTP/1.1\n{LOCAL}Authorization: Bearer dgm_<VICTIM>\n{POST}"
    ),
    "control: a wrong operator key": (
        f"POST /dragoman/episodes HTTP/1.1\n{LOCAL}Authorization: Bearer dgo_{'0' * 32}\n{POST}"
    ),
    "control: double slash": f"POST //dragoman/episodes HTTP/1.1\n{LOCAL}x-api-key: dgm_<ATTACKER>\n{POST}",
    "control: encoded letter": f"POST /%64ragoman/episodes HTTP/1.1\n{LOCAL}x-api-key: dgm_<ATTACKER>\n{POST}",
    "control: behind a token": f"POST /e/<ATTACKER>/dragoman/episodes HTTP/1.1\n{LOCAL}{POST}",
    "control: dots": f"POST /v1/../dragoman/episodes HTTP/1.1\n{LOCAL}x-api-key: dgm_<ATTACKER>\n{POST}",
    "control: backslash": f"POST /v1\\..\\dragoman\\episodes HTTP/1.1\n{LOCAL}x-api-key: dgm_<ATTACKER>\n{POST}",
}
PROXIED = {
    "CONNECT without credentials": "CONNECT 127.0.0.1:<CANARY> HTTP/1.1\nHost: 127.0.0.1:<CANARY>\n\n",
    "CONNECT with a provider's key": (
        "CONNECT api.anthropic.com:443 HTTP/1.1\nHost: api.anthropic.com\nAuthorization: Bearer <SECRET>\n\n"
    ),
    "CONNECT as an ended episode": (
        "CONNECT api.anthropic.com:443 HTTP/1.1\nHost: api.anthropic.com\nProxy-Authorization: Basic ZW5kZWQ6eA==\n\n"
    ),
    "no credentials, absolute form": "GET http://127.1:<CANARY>/ HTTP/1.1\nHost: 127.1\n\n",
    "proxy user and key disagree": (
        f"POST http://api.anthropic.com/v1/messages HTTP/1.1\nHost: api.anthropic.com\n{AUTH}"
        f"x-api-key: dgm_<VICTIM>\n{POST}"
    ),
    "control under a provider's name": (
        f"POST http://api.anthropic.com/dragoman/episodes HTTP/1.1\nHost: 127.0.0.1:<PORT>\n{AUTH}{POST}"
    ),
    "a loopback host in the head only": f"GET http://127.1:<CANARY>/ HTTP/1.1\nHost: api.anthropic.com\n{AUTH}\n",
    "a WebSocket to this machine": (
        f"GET http://127.1:<CANARY>/ HTTP/1.1\nHost: 127.1\n{AUTH}Connection: Upgrade\nUpgrade: websocket\n"
        "Sec-WebSocket-Version: 13\nSec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\n\n"
    ),
    **{
        f"this machine as {host}": f"GET http://{host}:<CANARY>/ HTTP/1.1\nHost: {host}\n{AUTH}\n"
        for host in (
            *("127.0.0.1", "localhost", "LOCALHOST", "localhost.", "127.1", "2130706433", "0x7f000001", "0177.0.0.1"),
            *("0.0.0.0", "[::1]", "[::ffff:127.0.0.1]", "api.anthropic.com@127.0.0.1"),
        )
    },
}


@pytest.mark.parametrize("attempt", ORIGIN_FORM)
def test_base_url_attempts(world: World, attempt: str) -> None:
    heard = exchange(world.address, world.fill(ORIGIN_FORM[attempt]))
    assert set(statuses(heard)) <= REFUSED, heard
    assert statuses(heard) or heard == b"", heard
    assert world.victim.token.encode() not in heard


@pytest.mark.parametrize("attempt", PROXIED)
def test_proxy_attempts(world: World, attempt: str) -> None:
    heard = exchange(world.address, world.fill(PROXIED[attempt]))
    assert set(statuses(heard)) <= REFUSED, heard


TUNNEL = "CONNECT {target} HTTP/1.1\nHost: {target}\n" + AUTH + "\n"


@pytest.mark.parametrize("target", ["127.0.0.1:<CANARY>", "localhost:<CANARY>", "api.anthropic.com:443"])
@pytest.mark.parametrize(
    "first",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"\x00\x00\x00\x08\x04\xd2\x16\x2f",  # PostgreSQL asks for TLS
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET /dragoman/status HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        b"*1\r\n$4\r\nPING\r\n",
    ],
)
def test_what_is_no_tls_in_a_tunnel_reaches_nobody(world: World, target: str, first: bytes) -> None:
    heard = exchange(world.address, world.fill(TUNNEL.format(target=target)), first, then_close=True)
    assert statuses(heard)[0] == 200, "the tunnel itself opens, so that a harness gets an answer inside"
    assert set(statuses(heard)[1:]) <= REFUSED, heard


@pytest.mark.parametrize(
    ("target", "name", "path", "host"),
    [
        ("127.0.0.1:<CANARY>", "127.0.0.1", "/", "127.0.0.1"),
        ("localhost:<CANARY>", "localhost", "/", "localhost"),
        ("127.1:<CANARY>", "api.anthropic.com", "/v1/messages", "api.anthropic.com"),
        ("api.anthropic.com:443", "api.anthropic.com", "/dragoman/status", "127.0.0.1:<PORT>"),
        ("api.anthropic.com:443", "localhost", "http://127.0.0.1:<CANARY>/", "127.0.0.1:<CANARY>"),
    ],
)
def test_tls_in_a_tunnel_to_this_machine(world: World, target: str, name: str, path: str, host: str) -> None:
    """The name in the tunnel, in the handshake and in the head may all differ; the tunnel's decides."""
    context = ssl.create_default_context(cafile=str(world.gateway.ca))
    context.check_hostname = False
    with socket.create_connection(world.address, timeout=20) as connection:
        connection.sendall(world.fill(TUNNEL.format(target=target)))
        assert b" 200 " in connection.recv(4096)
        with context.wrap_socket(connection, server_hostname=name) as secure:
            secure.sendall(world.fill(f"GET {path} HTTP/1.1\nHost: {host}\nConnection: close\n\n"))
            heard = b""
            while piece := secure.recv(65536):
                heard += piece
    assert set(statuses(heard)) <= REFUSED, heard
    assert statuses(heard), heard


@pytest.mark.parametrize(
    "request_text",
    [
        f"POST /v1/messages HTTP/1.1\nHost: x\nx-api-key: dgm_<VICTIM>\n{POST}",
        f"POST /e/<VICTIM>/v1/messages HTTP/1.1\nHost: x\n{POST}",
        f"POST /v1/messages HTTP/1.1\nHost: x\nx-dragoman-ticket: {'0' * 32}\nx-api-key: dgm_<VICTIM>\n{POST}",
        f"POST /dragoman/episodes HTTP/1.1\nHost: x\nAuthorization: Bearer OPERATOR\n{POST}",
        f"POST /dragoman/episodes/<VICTIM_ID>/end HTTP/1.1\nHost: x\nAuthorization: Bearer OPERATOR\n{POST}",
    ],
)
def test_the_apps_own_port_answers_nobody(world: World, request_text: str) -> None:
    """Not even with the right keys: a request that did not come through the proxy has no ticket."""
    filled = world.fill(request_text).replace(b"OPERATOR", world.operator.encode())
    assert statuses(exchange(("127.0.0.1", world.app_port), filled)) == [401]


@pytest.mark.parametrize(
    ("headers", "content", "status"),
    [
        ({"x-filler": "a" * 70_000}, BODY, 431),
        ({"content-length": str(10**10)}, None, 400),  # by mitmproxy itself, before any of it is read
        ({"content-encoding": "gzip"}, gzip.compress(b" " * 66 * 2**20), 413),
        ({"content-encoding": "gzip"}, b"no gzip", 400),
        ({"content-encoding": "rot13"}, BODY, 400),
    ],
)
def test_what_is_too_large_or_not_what_it_says(
    world: World, headers: dict[str, str], content: bytes | None, status: int
) -> None:
    own = world.gateway.open()
    url = f"{world.gateway.address}/v1/messages"
    all_headers = {"x-api-key": own.api_key, **headers}
    if content is None:
        lines = "".join(f"{name}: {value}\n" for name, value in all_headers.items())
        heard = exchange(world.address, f"POST /v1/messages HTTP/1.1\n{LOCAL}{lines}\n".replace("\n", "\r\n").encode())
        assert statuses(heard) == [status]
        return
    assert httpx.post(url, content=content, headers=all_headers, trust_env=False, timeout=60).status_code == status


def test_another_episodes_conversation_cannot_be_continued_or_read(world: World) -> None:
    """Ids that were issued to one episode mean nothing in another."""
    owner, thief = world.gateway.open(), world.gateway.open()
    url = f"{world.gateway.address}/v1/messages"
    said = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "my secret plan"}]}
    first = httpx.post(url, json=said, headers={"x-api-key": owner.api_key}, trust_env=False).json()
    messages = [
        {"role": "user", "content": "go on"},
        {"role": "assistant", "content": first["content"]},
        {"role": "user", "content": "what was the plan?"},
    ]
    body = {**said, "messages": messages, "previous_message_id": first["id"]}
    assert httpx.post(url, json=body, headers={"x-api-key": thief.api_key}, trust_env=False).status_code == 200
    (stolen,) = world.gateway.calls(thief.id)
    assert stolen.outcome is not None
    assert (stolen.outcome.parent_id, stolen.outcome.shared_len) == (None, 0)
    head = {
        "model": "m",
        "input": "and?",
        "previous_response_id": f"resp_{world.gateway.calls(owner.id)[0].arrival.id}",
    }
    reply = httpx.post(
        f"{world.gateway.address}/v1/responses", json=head, headers={"x-api-key": thief.api_key}, trust_env=False
    )
    assert reply.status_code in (400, 404)
    assert "secret plan" not in reply.text


def test_after_all_of_it_nothing_was_reached_recorded_or_written(world: World) -> None:
    assert world.canary.reached == []
    assert world.gateway.calls(world.victim.id) == []
    with world.gateway.client() as client:
        assert client.episode(world.victim.id).end is None
    assert [
        call for call in world.gateway.calls(world.attacker.id) if call.outcome and call.outcome.status == "answered"
    ] == []
    secrets = [SECRET, world.operator, *(one.token for one in (world.victim, world.attacker, world.ended))]
    folder = world.gateway.home.parent
    private = {world.gateway.home / "operator.key"}
    for path in folder.rglob("*"):
        if path.is_file() and path not in private:
            data = path.read_bytes()
            assert [secret for secret in secrets if secret.encode() in data] == [], path


def test_there_are_enough_attempts() -> None:
    assert len(ORIGIN_FORM) + len(PROXIED) >= 40
