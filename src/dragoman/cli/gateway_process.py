"""A gateway that another command starts for its own use: on a free port, waited for, stopped afterwards."""

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from dragoman.cli import processes
from dragoman.cli.episode import connect
from dragoman.cli.output import Failure, step
from dragoman.cli.processes import Child
from dragoman.gateway_client import GatewayClient, GatewayError
from dragoman.home import state_folder

GATEWAY_SECONDS = 120.0
"""How long the gateway may take to start and load the model's tokenizer."""


@contextmanager
def gateway(engine: str, max_reply_tokens: int) -> Iterator[str]:
    """The address of a gateway on a free port, with its model loaded; stopped afterwards. Raises ``Failure``."""
    address = f"127.0.0.1:{processes.free_port()}"
    command = [sys.executable, "-m", "dragoman", "serve", "--listen", address, "--engine", engine]
    command += ["--max-reply-tokens", str(max_reply_tokens)]
    log = state_folder() / "logs" / "quickstart-gateway.log"
    with processes.running(command, os.environ, log) as child:
        with step("starting the gateway"):
            wait_for_gateway(child, f"http://{address}", GATEWAY_SECONDS)
        yield f"http://{address}"


def wait_for_gateway(child: Child, address: str, timeout: float, client: GatewayClient | None = None) -> None:
    """Return when the gateway answers and has loaded the model. Raises ``Failure`` with its last lines.

    ``client``: for a gateway whose state folder is not this process's own; it stays open.
    """
    limit = time.monotonic() + timeout
    last = "it does not answer"
    with contextlib.nullcontext(client) if client is not None else connect(address) as asking:
        while True:
            try:
                if asking.status().model is not None:
                    return
                last = "it has not loaded the engine's model"
            except GatewayError as error:
                last = str(error)
            code = child.returncode()
            if code is not None or time.monotonic() > limit:
                what = f"the gateway exited with {code}" if code is not None else f"the gateway is not ready: {last}"
                raise Failure("\n".join([what, *(f"  {line}" for line in child.last_lines(15)), f"  log: {child.log}"]))
            time.sleep(0.2)
