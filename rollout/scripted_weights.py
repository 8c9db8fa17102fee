"""The weights that a scripted engine pretends to have, and the routes of vLLM's by which they are changed.

Rules of this module: weights must be there as a folder, and change nothing but labels and names.
"""

import asyncio
import json
from pathlib import Path

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from dragoman.store.records import JsonObject

CHANGES = (
    *("/pause", "/resume", "/collective_rpc", "/reset_prefix_cache", "/update_weight_version"),
    *("/v1/load_lora_adapter", "/v1/unload_lora_adapter"),
)


class ScriptedWeights:
    def __init__(self) -> None:
        self.version = "default"
        self.adapters: dict[str, str] = {}
        """Name → folder."""
        self.told: list[str] = []
        """What was asked, in order."""
        self.going = asyncio.Event()
        """Clear while paused."""
        self.going.set()

    def routes(self) -> list[Route]:
        return [
            Route("/weight_info", self._info),
            *(Route(path, self._change, methods=["POST"]) for path in CHANGES),
        ]

    async def _info(self, request: Request) -> Response:
        return JSONResponse({"weight_version": self.version})

    async def _change(self, request: Request) -> Response:
        path, raw = request.url.path, await request.body()
        body: JsonObject = json.loads(raw) if raw else {}
        folder = body.get("lora_path") or body.get("kwargs", {}).get("weights_path")
        self.told.append(path)
        if folder is not None and not await asyncio.to_thread(Path(folder).is_dir):
            return JSONResponse({"error": {"message": f"there is no folder {folder!r}", "code": 500}}, 500)
        match path:
            case "/pause":
                self.going.clear()
            case "/resume":
                self.going.set()
            case "/update_weight_version":
                self.version = body["new_version"]
            case "/v1/load_lora_adapter":
                self.adapters[body["lora_name"]] = body["lora_path"]
            case "/v1/unload_lora_adapter":
                self.adapters.pop(body["lora_name"], None)
        return JSONResponse({"success": True})


def extend_spans(spans: list[JsonObject], version: str, start: int, end: int) -> None:
    """Say that ``version`` sampled the tokens ``start`` to ``end`` of a reply, in vLLM's words."""
    if spans and spans[-1]["version"] == version:
        spans[-1]["end"] = end
    else:
        spans.append({"version": version, "start": start, "end": end})
