"""The pieces of a run that a script starts by itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.pod.leases import HARD_STOP_S, a_lease
from trmcloud.core import pod_contract as contract
from trmcloud.pod.keep import Keeper
from trmcloud.pod.standalone import linger_s

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
