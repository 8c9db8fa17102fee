"""The conversation as typed, immutable values. Past ``providers/`` there is nothing else.

Rules of this module: frozen dataclasses only, order is always kept, and no field is invented: what a harness
did not say is ``None``. Strings that a harness wrote are never changed here. The one dict that remains is a tool's
JSON schema, which is data of the harness's own.
"""

from dataclasses import dataclass
from typing import Literal

from dragoman.store.records import FinishReason, JsonObject, Logprobs, PolicySpan, ProviderName, TokenIds

Role = Literal["system", "user", "assistant", "tool"]
"""``developer`` is read as ``system``. ``tool`` is a message that holds only tool results."""


@dataclass(frozen=True, slots=True)
class TextPart:
    text: str


@dataclass(frozen=True, slots=True)
class ImagePart:
    media_type: str | None
    data: str | None
    """Base64 of the image bytes; ``None`` when the harness sent a URL."""
    url: str | None = None


@dataclass(frozen=True, slots=True)
class ReasoningPart:
    text: str
    signature: str | None = None
    """The opaque value that a harness echoes with reasoning; ours starts with the call id's carrier."""


@dataclass(frozen=True, slots=True)
class ToolCallPart:
    id: str
    name: str
    arguments: str
    """The arguments as JSON text, exactly as sampled or as the harness echoed them; may be malformed JSON."""


@dataclass(frozen=True, slots=True)
class ToolResultPart:
    call_id: str
    parts: tuple[TextPart | ImagePart, ...]
    is_error: bool = False


Part = TextPart | ImagePart | ReasoningPart | ToolCallPart | ToolResultPart


@dataclass(frozen=True, slots=True)
class Message:
    role: Role
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Tool:
    name: str
    description: str
    parameters: JsonObject
    """JSON schema of the arguments, as the harness sent it."""
    kind: Literal["function", "custom", "local_shell", "tool_search"] = "function"
    """In which of the Responses dialect's forms a call to it is told; the model sees a function in any case."""
    namespace: str | None = None
    """The Responses dialect's namespace it belongs to; ``name`` then starts with it and ``__``."""


@dataclass(frozen=True, slots=True)
class ToolChoice:
    mode: Literal["auto", "none", "required"] = "auto"
    name: str | None = None
    """With ``required``: the one tool that must be called."""
    parallel: bool = True


@dataclass(frozen=True, slots=True)
class ResponseFormat:
    kind: Literal["json_object", "json_schema"]
    schema: JsonObject | None = None


@dataclass(frozen=True, slots=True)
class Sampling:
    """What was asked of sampling, or what was used. ``None``: the harness did not say.

    Knobs of the provider APIs that are read nowhere and ignored: ``logit_bias``, ``service_tier``, ``user``, ``store``.
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Earlier:
    """A conversation as a later request of the Responses dialect goes on with it, by the id of its last reply."""

    messages: tuple[Message, ...]
    """Of the request and its reply, without ``instructions``: those hold for one request only."""
    tools: tuple[Tool, ...]
    """Those that came with input items. (Those beside the input hold for one request only.)"""


@dataclass(frozen=True, slots=True)
class ResponsesDetails:
    """What a request of the Responses dialect says beside the conversation."""

    previous: str | None = None
    """``previous_response_id`` as it was asked; ``messages`` and ``tools`` of the request hold what it stands for."""
    kept: bool = True
    """``store``: whether any later request may go on from the reply by its id. If not, only its own socket may."""
    instructions: bool = False
    """Whether the first message is ``instructions``, and not part of the input."""
    input_tools: tuple[str, ...] = ()
    """Names of the tools that came with input items."""
    warm_up: bool = False
    """``generate: false``: nothing is sampled, and a later request goes on from this one by its reply's id."""
    stream_id: str | None = None
    """The lane of a WebSocket that every event of the reply names."""
    compaction: Literal["item", "list"] | None = None
    """The reply is a summary in place of the conversation: as the one item of a response, or as the list that the
    ``/compact`` paths answer."""


_NO_DETAILS = ResponsesDetails()


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """One generation request, whatever dialect it came in."""

    provider: ProviderName
    model: str
    """The model name the harness asked for; echoed in the reply."""
    messages: tuple[Message, ...]
    """In the order the model is shown; separate system texts of one provider stay separate parts or messages."""
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = ToolChoice()
    response_format: ResponseFormat | None = None
    sampling: Sampling = Sampling()
    stream: bool = False
    stream_form: Literal["sse", "json_array", "messages"] = "sse"
    """Whether the stream is server-sent events, one JSON array that is sent element by element (Google only), or JSON
    texts, each ending in a line break: the messages of a WebSocket (Responses only)."""
    show_reasoning: bool = True
    """Google only: whether the harness asked to be shown reasoning."""
    include_usage: bool = True
    """Chat Completions only: whether a usage chunk was asked for."""
    top_logprobs: int | None = None
    """How many alternatives per token the reply must show; ``None``: no logprobs asked."""
    return_token_ids: bool = False
    prompt: str | tuple[int, ...] | None = None
    """Legacy completions only: the plain prompt; ``messages`` is then empty."""
    responses: ResponsesDetails | None = None
    """What only the Responses dialect has; ``None`` in the others."""

    @property
    def details(self) -> ResponsesDetails:
        """``responses``, and in the other dialects what says nothing."""
        return self.responses or _NO_DETAILS


@dataclass(frozen=True, slots=True)
class Usage:
    prompt_tokens: int
    completion_tokens: int
    reasoning_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Completion:
    """What the engine sampled for one call."""

    prompt_ids: TokenIds
    """The full prompt, shape (P,)."""
    completion_ids: TokenIds
    """Shape (C,), stop ids included."""
    logprobs: Logprobs
    """Shape (C,), aligned with ``completion_ids``, finite."""
    finish_reason: Literal["stop", "length", "abort"]
    """The engine's own word, before tool calls are looked for."""
    policy_spans: tuple[PolicySpan, ...]

    def __post_init__(self) -> None:
        if len(self.completion_ids) != len(self.logprobs):
            raise ValueError(f"{len(self.completion_ids)} completion ids but {len(self.logprobs)} logprobs")


ReplyPart = ReasoningPart | TextPart | ToolCallPart


@dataclass(frozen=True, slots=True)
class Reply:
    """The one description of a reply that both the whole and the streamed form are made from."""

    id: str
    """The call id; a provider puts its own prefix before it."""
    model: str
    created: int
    """Unix seconds."""
    parts: tuple[ReplyPart, ...]
    """Reasoning before text before tool calls; at most one reasoning and one text part; none is empty."""
    finish_reason: FinishReason
    usage: Usage
    stop_sequence: str | None = None
    """The stop string that ended the reply, if one did."""
    completion: Completion | None = None
    """Present when the harness asked for token ids or logprobs."""


@dataclass(frozen=True, slots=True)
class ReplyStarted:
    """First event of a reply: headers have been sent, nothing has been sampled yet."""

    id: str
    model: str
    created: int
    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    text: str


@dataclass(frozen=True, slots=True)
class TextDelta:
    text: str


@dataclass(frozen=True, slots=True)
class ReplyFinished:
    """Last event: the record is durable. Tool calls, stop reason and usage are in ``reply``.

    The deltas sent before, joined, equal the reply's reasoning and text.
    """

    reply: Reply


@dataclass(frozen=True, slots=True)
class ReplyFailed:
    """Last event of a stream that broke after its headers were sent."""

    error: Exception


ReplyEvent = ReplyStarted | ReasoningDelta | TextDelta | ReplyFinished | ReplyFailed
