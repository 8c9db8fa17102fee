"""The probe's own script for mitmproxy, beside the gateway's: it notes what comes, and plays one fault when told to.

Rules of this module: mitmproxy loads it by its path, after the gateway's script. It tells no more than where a request
went and whose certificate was refused; what was said is in the saved flows.
"""

import asyncio
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dragoman.store.records import JsonObject

if TYPE_CHECKING:
    from mitmproxy import http, tls
    from mitmproxy.addonmanager import Loader

FOLDER = "probe_folder"
"""The option that names the folder of the two files."""
NOTES, FAULT = "seen.jsonl", "fault.json"
"""What came, one JSON object a line; and the fault that the next request for a reply meets, which takes the file."""


LOOK_EVERY = 0.2
"""Seconds between looks whether a client that is kept waiting is still there."""


class Watch:
    def load(self, loader: "Loader") -> None:
        loader.add_option(FOLDER, str, "", "Folder of the probe's notes and faults.")

    def requestheaders(self, flow: "http.HTTPFlow") -> None:
        """Before the gateway's script sends it elsewhere."""
        request = flow.request
        self._note({"host": request.pretty_host, "secure": request.scheme == "https", "port": request.port})

    def tls_failed_client(self, data: "tls.TlsData") -> None:
        self._note({"distrusted": data.conn.sni or "a host without a name"})

    async def request(self, flow: "http.HTTPFlow") -> None:
        from mitmproxy import http

        from dragoman.addons.errors import DragomanError
        from dragoman.addons.providers import find_provider

        path, _, query = flow.request.path.partition("?")
        headers = {name.lower(): value for name, value in flow.request.headers.items()}
        found = find_provider(host=None, method=flow.request.method, path=path, query=query, headers=headers)
        if flow.response is not None or found is None or found[1].kind != "generate":
            return
        fault = self._take_fault(offers_tools=b'"tools"' in (flow.request.get_content(strict=False) or b""))
        if fault is None:
            return
        if fault["wait"]:
            await self._keep_waiting(flow, fault["wait"])
            return
        told = {"content-type": "application/json"}
        if fault["retry_after"] is not None:
            told["retry-after"] = str(fault["retry_after"])
        error = DragomanError("the probe answers so once, to see what the harness makes of it")
        error.status, error.code = fault["status"], "overloaded" if fault["status"] == 429 else "engine_failed"
        body = json.dumps(found[0].error_body(error, None))
        flow.response = http.Response.make(fault["status"], body, told)

    async def _keep_waiting(self, flow: "http.HTTPFlow", seconds: float) -> None:
        """Nothing for so long; a flow whose client leaves meanwhile ends then, so that it is saved without a reply."""
        limit = time.monotonic() + seconds
        while (left := limit - time.monotonic()) > 0:
            await asyncio.sleep(min(left, LOOK_EVERY))
            if not flow.client_conn.connected:
                if flow.killable:
                    flow.kill()
                return

    def _take_fault(self, *, offers_tools: bool) -> JsonObject | None:
        """The fault for a request, which is then used up; ``None``: there is none, or it is for another one."""
        file = self._folder() / FAULT
        if not file.exists():
            return None
        fault: JsonObject = json.loads(file.read_text())
        if fault["offers_tools"] and not offers_tools:
            return None
        file.unlink()
        return fault

    def _note(self, what: dict[str, Any]) -> None:
        with (self._folder() / NOTES).open("a") as file:
            file.write(json.dumps(what) + "\n")

    def _folder(self) -> Path:
        from mitmproxy import ctx

        return Path(getattr(ctx.options, FOLDER))


addons = [Watch()]
