"""What a pod's agent tells of its checkpoints, and when."""

from __future__ import annotations

import hashlib
from pathlib import Path

from tests.unit.pod.leases import a_lease
from trmcloud.core.clock import Instant
from trmcloud.core.contract import manifest as mf
from trmcloud.core.contract import pod_contract as contract
from trmcloud.io.files import write_atomic
from trmcloud.pod.agent.process import _FilesAndProcesses
from trmcloud.pod.storage import disk_pressure


def save(
    root: Path, step: int, val_bpb: float, size: int = 1000, cooldown_from: int | None = None
) -> Path:
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
        cooldown_from=cooldown_from,
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


def read(folder: Path) -> mf.CheckpointManifest:
    return mf.from_json((folder / mf.MANIFEST_NAME).read_text(), str(folder))


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def dropped(free: int, *saved: tuple[int, float], root: Path) -> list[tuple[int, bool]]:
    """(step, whether all of it goes) for checkpoints of 2,000 bytes each."""
    manifests = [read(save(root, step, bpb)) for step, bpb in saved]
    drops = disk_pressure.what_to_drop(manifests, free)
    return [(drop.manifest.step, not drop.names) for drop in drops]


SAVED = ((20, 1.0), (40, 3.0), (60, 2.5), (80, 2.0))
"""20 is the best, 80 the latest; one best is kept."""


def test_nothing_goes_while_two_more_fit(tmp_path: Path) -> None:
    assert dropped(4000, *SAVED, root=tmp_path) == []


def test_optimizers_go_first_the_oldest_first_and_only_as_many_as_needed(tmp_path: Path) -> None:
    assert dropped(2500, *SAVED, root=tmp_path) == [(20, False), (40, False)]


def test_then_whole_checkpoints_but_never_the_best_nor_the_latest(tmp_path: Path) -> None:
    optimizers = [(20, False), (40, False), (60, False)]
    assert dropped(500, *SAVED, root=tmp_path) == [*optimizers, (40, True)]


def test_what_was_saved_before_the_cooldown_stays_whole(tmp_path: Path) -> None:
    manifests = [
        read(save(tmp_path, step, bpb, cooldown_from=40 if step > 40 else None))
        for step, bpb in SAVED
    ]
    drops = disk_pressure.what_to_drop(manifests, 0)
    assert [(drop.manifest.step, bool(drop.names)) for drop in drops] == [
        *((20, True), (60, True), (60, False)),
    ]  # fmt: skip
    run_dir = tmp_path / contract.RUNS_DIR / "r1"
    assert disk_pressure.make_room(run_dir, manifests, lambda text: None, 0)
    told = body(tmp_path).kept(at(10.0))
    assert [(k.step, k.size_bytes, k.cooldown_from) for k in told] == [
        *((20, 1000, None), (40, 2000, None), (80, 2000, 40)),
    ]  # fmt: skip


def test_a_disk_that_runs_low_is_tidied_and_every_manifest_stays_true(tmp_path: Path) -> None:
    folders = [save(tmp_path, step, bpb, size=25 * step) for step, bpb in SAVED]
    said: list[str] = []
    run_dir = tmp_path / contract.RUNS_DIR / "r1"
    assert disk_pressure.make_room(run_dir, [read(folder) for folder in folders], said.append, 0)
    assert [folder.exists() for folder in folders] == [True, False, False, True]
    assert names_in(folders[0]) == ["manifest.json", "weights.safetensors"]
    assert [file.kind for file in read(folders[0]).files] == ["weights"]
    assert "optimizer.safetensors" in names_in(folders[3])
    assert len(said) == 5
    left = [read(folders[0]), read(folders[3])]
    assert not disk_pressure.make_room(
        run_dir, left, said.append, 0
    )  # there is nothing left to drop
    pod = body(tmp_path)
    assert [(kept.step, kept.size_bytes) for kept in pod.kept(at(10.0))] == [(20, 500), (80, 4000)]
