"""Answers for the requests that harnesses make beside model calls: telemetry, settings, policies, update checks. Pure.

Rules of this module: one table, first match wins, and each row names what was seen when a real harness got that answer.
Nothing here is stored as a call. pi makes model calls only, so it has no row.
"""

from collections.abc import Callable
from dataclasses import dataclass

import orjson

ACCOUNT_HEADER = "chatgpt-account-id"

_NOT_FOUND = b'{"type":"error","error":{"type":"not_found_error","message":"Not found"}}'
_CLAUDE = (None, "api.anthropic.com")
_CODEX = (None, "chatgpt.com")


@dataclass(frozen=True, slots=True)
class SideAnswer:
    status: int
    body: bytes
    content_type: str = "application/json"


def _accounts(account: str | None) -> SideAnswer:
    """The one account that a ChatGPT login has, as its client named it."""
    if account is None:
        return SideAnswer(404, b"{}")
    free = "NO_CONSTRAINT"
    entry = {"id": account, "plan_type": "pro", "structure": "personal"}
    entry |= {"workspace_backend_origin": free, "account_routing_override": free}
    answer = {"accounts": [entry], "default_account_id": account, "account_ordering": [account]}
    return SideAnswer(200, orjson.dumps(answer))


@dataclass(frozen=True, slots=True)
class _Row:
    hosts: tuple[str | None, ...]
    """Exact host names, or with a leading dot all hosts below that name; ``None``: base-URL mode."""
    method: str
    """``*``: any."""
    path: str
    """Start of the path; with ``$`` at its end, the whole path."""
    answer: SideAnswer | Callable[[str | None], SideAnswer]
    """A function of the account that the request names (``None``: it names none)."""

    def matches(self, host: str | None, method: str, path: str) -> bool:
        return (
            any(_is_host(host, wanted) for wanted in self.hosts)
            and self.method in ("*", method)
            and (path == self.path[:-1] if self.path.endswith("$") else path.startswith(self.path))
        )


_ROWS = (
    # claude 2.1.332 asks this once before its first message, 2.1.197 asks for "/": 200 and 404 both went well.
    _Row(_CLAUDE, "HEAD", "/api/hello$", SideAnswer(200, b"")),
    _Row(_CLAUDE, "HEAD", "/$", SideAnswer(200, b"")),
    # claude: 404 on all of these and the run went on at once. policy_limits answered 200 {} or 204 is asked for three
    # times more (4 s), so even a polite answer is worse.
    _Row(_CLAUDE, "GET", "/api/claude_code/", SideAnswer(404, _NOT_FOUND)),
    _Row(_CLAUDE, "GET", "/api/claude_cli/", SideAnswer(404, _NOT_FOUND)),
    _Row(_CLAUDE, "GET", "/api/claude_code_penguin_mode$", SideAnswer(404, _NOT_FOUND)),
    _Row(_CLAUDE, "GET", "/api/directory/", SideAnswer(404, _NOT_FOUND)),
    _Row(_CLAUDE, "POST", "/api/eval/", SideAnswer(404, _NOT_FOUND)),
    # claude: about 314 kB of telemetry. On 404 the terminal interface sent the same 389 kB four times.
    _Row(_CLAUDE, "POST", "/api/event_logging/", SideAnswer(200, b"{}")),
    # claude's terminal interface: update check and change log; 404 is taken in silence.
    _Row(("downloads.claude.ai",), "*", "/", SideAnswer(404, b"{}")),
    # codex asks for its models up to four times at the start of every run. It goes on with none, and on 404 too; a list
    # of another shape is logged as an error.
    _Row(_CODEX, "GET", "/backend-api/codex/models$", SideAnswer(200, b'{"models":[]}')),
    # codex with a ChatGPT login: without its own account in the answer it makes no call and ends with 1.
    _Row(_CODEX, "GET", "/backend-api/wham/accounts/check$", _accounts),
    # Plugins, settings, telemetry: 404 and it goes on.
    _Row(_CODEX, "*", "/backend-api/plugins/", SideAnswer(404, b"{}")),
    _Row(_CODEX, "*", "/backend-api/ps/", SideAnswer(404, b"{}")),
    _Row(_CODEX, "*", "/backend-api/wham/", SideAnswer(404, b"{}")),
    # opencode: its model catalogue (without an answer it retries for 7 to 20 s). It also asks npm for its plugin,
    # as claude's terminal interface does for updates: the egress policy answers that, 404 unless the host is allowed.
    _Row(("models.opencode.ai",), "*", "/", SideAnswer(404, b"{}")),
    # claude's change log, LiteLLM's cost map for mini and aider: all went on without it.
    _Row(("raw.githubusercontent.com",), "GET", "/", SideAnswer(404, b"{}")),
    # Telemetry of qwen, gemini and codex, in this order: each went on after 404.
    _Row((".rum.aliyuncs.com",), "*", "/", SideAnswer(404, b"{}")),
    _Row(("play.googleapis.com",), "*", "/log", SideAnswer(404, b"{}")),
    _Row(("ab.chatgpt.com",), "*", "/", SideAnswer(404, b"{}")),
)


def find_side_answer(host: str | None, method: str, path: str, account: str | None = None) -> SideAnswer | None:
    """The answer for a request (path without query) that is no model call; ``None``: it is not a known one.

    ``host`` is the host that the harness believes to talk to; ``None``: base-URL mode. ``account`` is the request's
    header ``ACCOUNT_HEADER``.
    """
    for row in _ROWS:
        if row.matches(host, method, path):
            return row.answer if isinstance(row.answer, SideAnswer) else row.answer(account)
    return None


def _is_host(host: str | None, wanted: str | None) -> bool:
    if host is None or wanted is None:
        return host is wanted
    return host.lower() == wanted or (wanted.startswith(".") and host.lower().endswith(wanted))
