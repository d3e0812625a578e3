"""Stoplight Prism: a mock of RunPod's published contract that somebody else wrote.

It checks each request against the OpenAPI file that ``TRMCLOUD_RUNPOD_OPENAPI`` names and answers
422 to what breaks it, with the violations in a header. ``make mock`` installs it below ``build/``.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.standins.loopback import free_port
from tests.standins.runpod.oracle import ENV_OPENAPI

PROGRAM = (
    Path(__file__).resolve().parents[2] / "build" / "prism" / "node_modules" / ".bin" / "prism"
)
#: What OpenAPI 3.1 means where it names no dialect. Prism takes the silence for an older one, to
#: which a field that is not in the contract is no fault.
DIALECT = "https://json-schema.org/draft/2020-12/schema"
_START_S = 60.0


@contextlib.contextmanager
def running(folder: Path) -> Iterator[str]:
    """Its URL, until the block ends; skips the test where Prism or the contract is not at hand."""
    contract = os.environ.get(ENV_OPENAPI)
    if not contract:
        pytest.skip(f"{ENV_OPENAPI} names no file: RunPod's contract is not at hand")
    if not PROGRAM.exists():
        pytest.skip("there is no Prism in build/: make mock")
    document: dict[str, Any] = json.loads(Path(contract).read_text(encoding="utf-8"))
    served = folder / "openapi.json"
    served.write_text(json.dumps({**document, "jsonSchemaDialect": DIALECT}), encoding="utf-8")
    port = free_port()
    log = folder / "prism.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(PROGRAM), "mock", "-h", "127.0.0.1", "-p", str(port), str(served)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + _START_S
        while not _answers(port):
            assert process.poll() is None, log.read_text(errors="replace")[-2000:]
            assert time.monotonic() < deadline, "Prism did not start"
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(20)


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False
