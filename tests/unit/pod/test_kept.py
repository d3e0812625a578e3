"""What a pod's agent tells of its checkpoints, and when."""

from __future__ import annotations

import hashlib
from pathlib import Path

from tests.unit.pod.conftest import a_lease
from trmcloud.core import manifest as mf
from trmcloud.core import pod_contract as contract
from trmcloud.core.clock import Instant
from trmcloud.pod.agent import _FilesAndProcesses
from trmcloud.pod.files import write_atomic


def save(root: Path, step: int, val_bpb: float, size: int = 1000) -> Path:
    """A whole checkpoint of ``2 × size`` bytes: weights, and an optimizer's shard."""
    folder = root / contract.RUNS_DIR / "r1" / "fast" / contract.CHECKPOINTS_DIR
    folder = folder / mf.step_dir_name(step)
    folder.mkdir(parents=True)
    files = []
    for kind in ("weights", "optimizer"):
        data = hashlib.sha256(f"{kind} {step}".encode()).digest().ljust(size, b"0")
        (folder / f"{kind}.safetensors").write_bytes(data)
        digest = hashlib.sha256(data).hexdigest()
        files.append(mf.CheckpointFile(f"{kind}.safetensors", kind, size, digest))
    made = mf.CheckpointManifest(
        run_id="r1",
        phase="fast",
        step=step,
        tokens=step,
        created_at=1000.0 + step,
        recipe="t",
        settings={"keep_best": 1},
        world_size=1,
        val_bpb=val_bpb,
        step_losses=(),
        cooled=False,
        data_sha256="0" * 64,
        tokenizer_sha256="0" * 64,
        files=tuple(files),
    )
    write_atomic(folder / mf.MANIFEST_NAME, mf.to_json(made))
    return folder


def body(root: Path) -> _FilesAndProcesses:
    lease = a_lease(1000.0)
    folder = root / contract.PODS_DIR / lease.pod_name
    folder.mkdir(parents=True)
    write_atomic(folder / contract.LEASE_NAME, contract.dump(lease))
    made = _FilesAndProcesses(root, lease.pod_name, lambda: Instant(1000.0, 10.0, "boot"))
    assert made.read_lease() == lease
    return made


def at(boot: float) -> Instant:
    return Instant(990.0 + boot, boot, "boot")


def steps(kept: tuple[contract.Kept, ...]) -> list[int]:
    return [each.step for each in kept]


def test_what_was_saved_last_is_told_with_the_trainer_s_end(tmp_path: Path) -> None:
    pod = body(tmp_path)
    save(tmp_path, 20, 2.0)
    assert steps(pod.kept(at(10.0))) == [20]
    save(tmp_path, 40, 1.0)
    assert steps(pod.kept(at(10.5))) == [20]  # not read at every tick
    pod.write_trainer(None)
    assert steps(pod.kept(at(10.5))) == [20, 40]
