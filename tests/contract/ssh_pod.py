"""A pod's SSH side for the contract tests: a real server, its keys, and a folder it serves."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.checkpoints import a_manifest
from tests.standins.sshd import Sshd, find_sshd, running
from trmcloud.adapters.ssh.connection import SshConnection, control_dir
from trmcloud.adapters.ssh.keys import KeyStore
from trmcloud.core.contract.manifest import (
    CheckpointFile,
    CheckpointManifest,
    step_dir_name,
    to_json,
)

needs_sshd = pytest.mark.skipif(find_sshd() is None, reason="there is no sshd on this machine")

POD = "trmc-0123abcd-r1f3a9c-g1-1790000000"
OTHER_POD = "trmc-0123abcd-r1f3a9c-g2-1790000000"
RUN = "r-1f3a9c"


@dataclass
class SshPod:
    """``home`` is the controller's; ``root`` is the pod's folder, as the pod sees it."""

    home: Path
    root: Path
    keys: KeyStore
    server: Sshd
    connections: list[SshConnection] = field(default_factory=list)

    def connect(self, alias: str = POD) -> SshConnection:
        made = SshConnection(
            self.server.address,
            identity=self.keys.identity(),
            known_hosts=self.keys.known_hosts(alias),
            alias=alias,
            control_dir=control_dir(self.home),
            user=self.server.user,
        )
        self.connections.append(made)
        return made

    def checkpoint(
        self, *files: CheckpointFile, step: int = 120, phase: str = "fast"
    ) -> CheckpointManifest:
        """A manifest that names the files; the folder on the pod is ``folder_of``."""
        return a_manifest(
            step, run_id=RUN, phase=phase, created_at=1_790_000_000.0 + step, files=files
        )

    def folder_of(self, manifest: CheckpointManifest) -> Path:
        steps = self.root / "runs" / RUN / manifest.phase / "checkpoints"
        return steps / step_dir_name(manifest.step)

    def save(
        self, *files: CheckpointFile, step: int = 120, phase: str = "fast"
    ) -> CheckpointManifest:
        """The checkpoint's manifest, on the pod too; the files are the test's own to write."""
        manifest = self.checkpoint(*files, step=step, phase=phase)
        folder = self.folder_of(manifest)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "manifest.json").write_text(to_json(manifest))
        return manifest


@contextmanager
def ssh_pod(tmp_path: Path, *, path: str = "", settings: Sequence[str] = ()) -> Iterator[SshPod]:
    home, root = tmp_path / "home", tmp_path / "pod"
    (home / "runs" / RUN).mkdir(parents=True)
    root.mkdir()
    keys = KeyStore(home)
    made = keys.for_pod(POD)
    server = Sshd(
        tmp_path / "sshd", made.host_private, made.user_public, path=path, settings=settings
    )
    with running(server):
        pod = SshPod(home, root, keys, server)
        try:
            yield pod
        finally:
            for connection in pod.connections:
                connection.close()


def written(path: Path, size: int, seed: int = 1) -> CheckpointFile:
    """A file of that size that does not repeat itself, and what a manifest says of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    source = random.Random(seed)
    digest = hashlib.sha256()
    with open(path, "wb") as file:
        left = size
        while left > 0:
            chunk = source.randbytes(min(left, 1 << 20))
            file.write(chunk)
            digest.update(chunk)
            left -= len(chunk)
    kind = "weights" if path.name.startswith("weights") else "state"
    return CheckpointFile(path.name, kind, size, digest.hexdigest())


def sha256_of(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def tools(folder: Path, *names: str) -> str:
    """A ``PATH`` with these programs of this machine and no others."""
    folder.mkdir()
    for name in names:
        found = shutil.which(name)
        assert found is not None, name
        os.symlink(found, folder / name)
    return str(folder)
