"""A machine that is to become ready for a pod."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from trmcloud.core.contract import pod_contract as contract
from trmcloud.pod.machine.prepare import Preparation, PreparingProgress

MOUNTS = "overlay / overlay rw 0 0\n/dev/sda1 /workspace ext4 rw 0 0\n"


class Machine:
    """A pod's folder, an ``nvidia-smi``, a local index of packages, and a clock."""

    def __init__(self, folder: Path, pod_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.pod_dir = folder, pod_dir
        self.bin = folder / "bin"
        self.bin.mkdir()
        self.wheels = folder / "wheels"
        self.wheels.mkdir()
        self.mounts = folder / "mounts"
        self.mounts.write_text(MOUNTS)
        self.wanted = folder / "environment.txt"
        self.wanted.write_text("# nothing is wanted\n")
        self.now = 100.0
        monkeypatch.setenv("PATH", f"{self.bin}:{os.environ['PATH']}")
        monkeypatch.setenv("PIP_NO_INDEX", "1")
        monkeypatch.setenv("PIP_FIND_LINKS", str(self.wheels))
        monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
        self.made: list[Preparation] = []

    def nvidia_smi(
        self, rows: str, board: str = "700.00, 9.0\n", links: str = "", before: str = ""
    ) -> None:
        (self.folder / "rows").write_text(rows)
        (self.folder / "board").write_text(board)
        (self.folder / "links").write_text(links)
        script = self.bin / "nvidia-smi"
        script.write_text(
            f"#!/bin/sh\n{before}\n"
            'case "$*" in nvlink*) shown=links ;; *compute_cap*) shown=board ;; *) shown=rows ;;'
            f' esac\ncat "{self.folder}/$shown"\n'
        )
        script.chmod(0o755)

    def wheel(self, name: str, version: str) -> None:
        info = f"{name}-{version}.dist-info"
        path = self.wheels / f"{name}-{version}-py3-none-any.whl"
        with zipfile.ZipFile(path, "w") as wheel:
            wheel.writestr(f"{name}.py", f"version = {version!r}\n")
            wheel.writestr(
                f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
            )
            wheel.writestr(
                f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
            )
            wheel.writestr(f"{info}/RECORD", "")

    def check(self, **asked: object) -> None:
        (self.pod_dir / contract.CHECK_NAME).write_text(json.dumps(asked))

    def stage(self, code: str = "code/abc", data: tuple[str, ...] = ()) -> Path:
        root = self.pod_dir.parents[1]
        folder = root / code
        folder.mkdir(parents=True, exist_ok=True)
        for each in data:
            (root / each).mkdir(parents=True, exist_ok=True)
        paths = tuple(str(root / each) for each in data)
        text = contract.dump(contract.StagedFiles(str(folder), paths))
        (self.pod_dir / contract.STAGED_NAME).write_text(text)
        return folder

    def prepare(self, give_up_at: float = 1e9) -> Preparation:
        made = Preparation(
            self.pod_dir.parents[1],
            self.pod_dir.name,
            give_up_at=give_up_at,
            wanted=self.wanted,
            mounts=self.mounts,
        )
        self.made.append(made)
        return made


Reach = Callable[[Preparation, str], PreparingProgress]
