"""The pieces of a run that a script starts by itself."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tests.unit.core.manifests import manifest
from tests.unit.pod.leases import HARD_STOP_S, a_lease
from trmcloud.core.contract import manifest as mf
from trmcloud.core.contract import pod_contract as contract
from trmcloud.export.standalone import linger_s
from trmcloud.pod.storage.checkpoint_copy import Keeper

NOW = 1_795_000_000.0


def saved(root: Path, name: str = "step-00000010") -> Path:
    folder = root / "runs" / "r1" / "fast" / contract.CHECKPOINTS_DIR / name
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"weights")
    (folder / "manifest.json").write_text("{}")
    return folder


def test_a_machine_is_kept_until_its_hard_stop_where_something_can_be_fetched(
    tmp_path: Path,
) -> None:
    lease = a_lease(NOW)
    pod_dir = tmp_path / contract.PODS_DIR / lease.pod_name
    pod_dir.mkdir(parents=True)
    (pod_dir / contract.LEASE_NAME).write_text(contract.dump(lease))
    wanted = {contract.ENV_LINGER_S: "hard-stop"}
    assert linger_s(tmp_path, lease.pod_name, wanted, NOW + 100) == 15.0
    saved(tmp_path)
    assert linger_s(tmp_path, lease.pod_name, wanted, NOW + 100) == HARD_STOP_S - 100
    assert linger_s(tmp_path, lease.pod_name, wanted, NOW + 9999) == 15.0


@pytest.mark.parametrize(("wanted", "seconds"), [("120", 120.0), ("", 15.0), ("1e9", 3600.0)])
def test_or_for_as_many_seconds_as_are_asked_for(
    wanted: str, seconds: float, tmp_path: Path
) -> None:
    assert linger_s(tmp_path, "none", {contract.ENV_LINGER_S: wanted}, NOW) == seconds


def test_a_finished_checkpoint_is_copied_once_its_manifest_last(tmp_path: Path) -> None:
    said: list[str] = []
    source = saved(tmp_path)
    keeper = Keeper(tmp_path / "runs" / "r1", tmp_path / "kept", said.append)
    assert keeper.copy_new() == 1
    copy = tmp_path / "kept" / "r1" / "fast" / contract.CHECKPOINTS_DIR / source.name
    assert sorted(path.name for path in copy.iterdir()) == ["manifest.json", "model.safetensors"]
    assert (copy / "model.safetensors").read_bytes() == b"weights"
    assert keeper.copy_new() == 0
    unfinished = saved(tmp_path, "step-00000020")
    (unfinished / "manifest.json").unlink()
    assert keeper.copy_new() == 0
    assert said == []


def test_a_folder_that_cannot_take_it_is_told_once_and_tried_again(tmp_path: Path) -> None:
    said: list[str] = []
    saved(tmp_path)
    blocked = tmp_path / "kept"
    blocked.write_text("a file")
    keeper = Keeper(tmp_path / "runs" / "r1", blocked, said.append)
    assert keeper.copy_new() == keeper.copy_new() == 0
    assert len(said) == 1
    assert str(blocked) in said[0]
    blocked.unlink()
    assert keeper.copy_new() == 1


@pytest.mark.parametrize("renames", [True, False])
def test_a_metric_that_came_later_is_copied_and_the_weights_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, renames: bool
) -> None:
    """In a share, and in a mounted bucket that knows no renames."""
    said: list[str] = []
    source = saved(tmp_path)
    early = manifest(10, None)
    (source / mf.MANIFEST_NAME).write_text(mf.to_json(early))
    run_dir, target = tmp_path / "runs" / "r1", tmp_path / "kept"
    keeper = Keeper(run_dir, target, said.append)
    assert keeper.copy_new() == 1
    copy = target / "r1" / "fast" / contract.CHECKPOINTS_DIR / source.name
    (copy / "model.safetensors").write_bytes(b"not touched")
    scored = mf.with_metric(early, 1.25, (3.0, 2.0))
    (source / mf.MANIFEST_NAME).write_text(mf.to_json(scored))
    if not renames:

        def refuse(*paths: object) -> None:
            raise OSError(errno.ENOSYS, "not implemented")

        monkeypatch.setattr(os, "replace", refuse)
    assert Keeper(run_dir, target, said.append).copy_new() == 1, "one that was started anew, too"
    assert mf.from_json((copy / mf.MANIFEST_NAME).read_text(), "copy") == scored
    assert (copy / "model.safetensors").read_bytes() == b"not touched"
    assert sorted(path.name for path in copy.iterdir()) == [mf.MANIFEST_NAME, "model.safetensors"]
    assert keeper.copy_new() == keeper.copy_new() == 0
    assert said == []
