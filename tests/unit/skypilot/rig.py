"""SkyPilot's adapter on a stand-in of the ``sky`` command, and a clock that the test moves."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from trmcloud.core.contract.pod_contract import Lease, PodName
from trmcloud.core.money import Usd
from trmcloud.ports.compute import PodKeys, PodRequest
from trmcloud.providers.skypilot.command import Sky
from trmcloud.providers.skypilot.compute import SkyPilotCompute

STANDIN = Path(__file__).resolve().parents[2] / "standins" / "sky.py"
NOW = 1_795_264_000.0
NAME = str(PodName("0a1b2c3d", "r1", 1, int(NOW) + 3600))
KEYS = PodKeys("PRIVATE", "ssh-ed25519 AAAA host", "ssh-ed25519 AAAA user")


def stand_in(program: Path, state: Path, clock: Path | None = None) -> Path:
    """A ``sky`` command whose memory is ``state``; it reads the test's ``clock`` by itself, since
    only what SkyPilot may see is passed on to it."""
    given = f"TEST_CLOCK={clock} " if clock is not None else ""
    program.write_text(f'#!/bin/sh\n{given}exec {sys.executable} -S {STANDIN} {state} "$@"\n')
    program.chmod(0o755)
    return program


class Rig:
    def __init__(self, folder: Path) -> None:
        self.state = folder / "state.json"
        self.set()
        program = stand_in(folder / "sky", self.state)
        self.sky = Sky(
            str(program), {"PATH": "/usr/bin:/bin", "HOME": str(folder)}, folder / "empty"
        )
        self.folder = folder
        self.now = NOW

    def compute(self, provider: str = "aws") -> SkyPilotCompute:
        return SkyPilotCompute(
            provider,
            self.sky,
            lambda name: KEYS,
            lambda: b"payload",
            self.folder / provider,
            now=lambda: self.now,
        )

    def set(self, **values: Any) -> None:
        self.state.write_text(json.dumps({**self.told(), **values}))

    def later(self, seconds: float) -> None:
        self.now = NOW + seconds

    def on(self, seconds: float) -> None:
        """Let time pass; what is being launched is up by then."""
        self.now += seconds
        self.set(at=self.now)

    def told(self) -> dict[str, Any]:
        return json.loads(self.state.read_text()) if self.state.exists() else {}

    def row(self, **values: Any) -> None:
        clusters = self.told()["clusters"]
        clusters[NAME].update(values)
        requests = self.told()["requests"]
        if values.get("status") == "UP":
            requests = [launch | {"status": "SUCCEEDED"} for launch in requests]
        self.set(clusters=clusters, requests=requests)


def request(**values: Any) -> PodRequest:
    lease = Lease(
        run_id="r1", pod_name=NAME, epoch=1, granted_at=NOW, soft_stop_at=NOW + 3000,
        hard_stop_at=NOW + 3600, landing_s=60.0, phases=(), fits_budget=True, min_useful_s=10.0,
    )  # fmt: skip
    made = PodRequest(NAME, "H100-SXM", 8, Usd("55.04"), lease, (), region="us-east-1")
    return replace(made, **values)
