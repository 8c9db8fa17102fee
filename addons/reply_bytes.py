"""The bytes of a reply that streams past, kept so that the saved flow has them."""

from dataclasses import dataclass, field

from mitmproxy import http


@dataclass(slots=True)
class ReplyBytes:
    keep: bool = True
    """Whether the reply may be saved at all; if not, it passes and the saved one is empty."""
    _chunks: list[bytes] = field(default_factory=list)

    def tee(self, data: bytes) -> bytes:
        """For ``flow.response.stream``: passes each chunk on as it is."""
        if self.keep:
            self._chunks.append(data)
        return data

    def put_back(self, flow: http.HTTPFlow) -> None:
        """Give the flow the body that its client got, or the part of it that came; one that it has already stays."""
        if flow.response is not None and flow.response.raw_content is None:
            flow.response.raw_content = b"".join(self._chunks)
