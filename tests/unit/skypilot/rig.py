"""SkyPilot's adapter on a stand-in of the ``sky`` command, and a clock that the test moves."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.present import present
from tests.standins.web import Answer, Asked, Faults
from trmcloud.core.contract.pod_contract import Lease, PodName
from trmcloud.core.money import Usd
from trmcloud.core.text import strip_control
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


def _stand_in_module() -> ModuleType:
    """The program, which finds its neighbour by its own folder."""
    spec = present(importlib.util.spec_from_file_location("standin_of_sky", STANDIN))
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.append(str(STANDIN.parent))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(STANDIN.parent))
    return module


_STANDIN = _stand_in_module()


class SkyInProcess(Sky):
    """The stand-in of ``sky`` without a process for each command; ``faults`` strike its commands,
    whose "METHOD /path" is ``sky`` and its words."""

    def __init__(self, program: Path, state: Path, environ: dict[str, str], folder: Path) -> None:
        super().__init__(str(program), environ, folder)
        self._state = state
        self.faults = Faults()

    def _done(self, words: Sequence[str], timeout_s: float) -> tuple[int, str, str]:
        asked = Asked("sky", " ".join(words), {}, {}, b"")
        answer = self.faults.answer(asked, lambda: self._carried_out(list(words)))
        return answer.status, strip_control(answer.body.decode()), answer.headers.get("said", "")

    def _carried_out(self, words: list[str]) -> Answer:
        def answered(state: dict[str, Any]) -> int:
            state.setdefault("asked", []).append(words)
            code = int(_STANDIN.answer(state, words, self._state))
            for part, changes in state.get("then", {}).items():
                if part in " ".join(words):
                    state.update(changes)
            return code

        out, said = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(said):
            code = _STANDIN.changed(self._state, answered)
        return Answer(
            code, out.getvalue().encode(), headers={"said": strip_control(said.getvalue())}
        )


class Rig:
    def __init__(self, folder: Path) -> None:
        self.state = folder / "state.json"
        self.set()
        program = stand_in(folder / "sky", self.state)
        environ = {"PATH": "/usr/bin:/bin", "HOME": str(folder)}
        self.sky = SkyInProcess(program, self.state, environ, folder / "empty")
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
