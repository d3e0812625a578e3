"""The pod's uploading process against a real S3 server: by presigned requests, and nothing else."""

from __future__ import annotations

import hashlib
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoints import whole_checkpoint
from tests.standins.s3 import CANARY, S3
from trmcloud.core.contract import bucket as bk
from trmcloud.core.contract import bucket_layout
from trmcloud.core.contract import manifest as mf
from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.contract.bucket_layout import (
    Place,
    pieces_of,
    put_key,
    puts_in_slot,
    report_name,
    slots_of,
)
from trmcloud.io.files import write_atomic
from trmcloud.pod.agent.side_processes import Transfer
from trmcloud.pod.machine.prepare import TrainerSetup
from trmcloud.pod.storage.report_upload import ReportUploader
from trmcloud.pod.storage.upload import Uploader

pytest.importorskip("boto3")
pytest.importorskip("moto")

BUCKET = "trmc-pod"
POD = "trmc-abcd1234-r1-g1-1790003000"
PLACE = Place(BUCKET, "some/prefix")


@pytest.fixture(scope="module")
def store(s3: S3) -> Any:
    """A client of the store, with a bucket of this module's own."""
    s3.client.create_bucket(Bucket=BUCKET)
    return s3.client


def save(root: Path, step: int, bpb: float | None, size: int = 3000) -> mf.CheckpointManifest:
    return whole_checkpoint(root, step, bpb, size=size, kinds=("weights",))[1]


def grant(store: Any, root: Path, **changes: Any) -> bk.Grants:
    slots = slots_of(1, 1)

    def signed(slot: str, name: str) -> str:
        key = PLACE.run("r1", "fast", slot, name)
        return str(
            store.generate_presigned_url(
                "put_object", Params={"Bucket": BUCKET, "Key": key}, ExpiresIn=600
            )
        )

    puts = {
        put_key("fast", slot, name, length): signed(slot, name)
        for slot in slots
        for name, length in puts_in_slot(1 << 14)
    }
    grants = bk.Grants(POD, 1790003000.0, {"fast": bk.PhaseSlots(1, slots)}, puts)
    grants = replace(grants, **changes)
    path = root / contract.PODS_DIR / POD / bk.GRANTS_NAME
    write_atomic(path, bk.dump_grants(grants), mode=0o600)
    return grants


@pytest.fixture
def root(tmp_path: Path, store: Any) -> Path:
    for found in store.list_objects_v2(Bucket=BUCKET).get("Contents", ()):
        store.delete_object(Bucket=BUCKET, Key=found["Key"])
    folder = tmp_path / contract.PODS_DIR / POD
    folder.mkdir(parents=True)
    phases = (contract.PhaseLease("fast", 0.0, 1.0, 1.0),)
    lease = contract.Lease(
        "r1", POD, 1, 0.0, 1.0, 2.0, 1.0, phases, fits_budget=True, min_useful_s=1.0
    )
    write_atomic(folder / contract.LEASE_NAME, contract.dump(lease))
    return tmp_path


def uploader(root: Path) -> Uploader:
    return Uploader(root, POD, sleep=lambda seconds: None)


def account(root: Path) -> bk.Uploads:
    return bk.load_uploads((root / contract.PODS_DIR / POD / bk.UPLOADS_NAME).read_text())


def in_slot(store: Any, slot: str, name: str) -> bytes:
    key = PLACE.run("r1", "fast", slot, name)
    return bytes(store.get_object(Bucket=BUCKET, Key=key)["Body"].read())


def settle(made: Uploader) -> None:
    while made.once():
        pass


def test_best_and_latest_are_stored_bit_by_bit_and_told(root: Path, store: Any) -> None:
    best, _, latest = save(root, 10, 1.0), save(root, 20, 1.5), save(root, 30, 2.0)
    grant(store, root)
    settle(uploader(root))
    told = {kept.step: kept for kept in account(root).uploaded}
    assert set(told) == {10, 30}, "what is neither best nor latest stays"
    for slot, made in (("g1-slot-0", best), ("g1-slot-1", latest)):
        text = in_slot(store, slot, mf.MANIFEST_NAME)
        assert mf.from_json(text, slot) == made
        weights = in_slot(store, slot, "weights.safetensors")
        assert hashlib.sha256(weights).hexdigest() == made.sha256


def test_a_large_file_goes_in_pieces_and_one_that_died_goes_on(
    root: Path, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket_layout, "PIECE_BYTES", 1000)
    made = save(root, 10, 1.0, size=4500)
    grants = grant(store, root)
    last = "fast/g1-slot-0/weights.safetensors.part-00003:1000"
    lame = {**grants.puts, last: grants.puts[last].replace(BUCKET, "no-such-bucket")}
    grant(store, root, puts=lame)
    first = uploader(root)
    first.once()
    first.once()
    assert account(root).uploaded == ()
    assert "NoSuchBucket" in account(root).trouble
    pieces = [piece.name for piece in pieces_of("weights.safetensors", 4500)]
    stored = {found["Key"].rpartition("/")[2] for found in store.list_objects_v2(
        Bucket=BUCKET)["Contents"]}  # fmt: skip
    assert stored < set(pieces), "no manifest, no checkpoint"
    before = store.head_object(Bucket=BUCKET, Key=PLACE.run("r1", "fast", "g1-slot-0", pieces[0]))
    grant(store, root)
    settle(uploader(root))
    assert [kept.step for kept in account(root).uploaded] == [10]
    whole = b"".join(in_slot(store, "g1-slot-0", name) for name in pieces)
    assert hashlib.sha256(whole).hexdigest() == made.sha256
    after = store.head_object(Bucket=BUCKET, Key=PLACE.run("r1", "fast", "g1-slot-0", pieces[0]))
    assert after["LastModified"] == before["LastModified"], "a stored piece is not sent again"


def evaluated(root: Path, made: mf.CheckpointManifest, bpb: float) -> mf.CheckpointManifest:
    """As the trainer does: the manifest is replaced once, the files are left alone."""
    scored = mf.with_metric(made, bpb, (3.0, 2.0))
    steps = root / contract.RUNS_DIR / "r1" / "fast" / contract.CHECKPOINTS_DIR
    path = steps / mf.step_dir_name(made.step) / mf.MANIFEST_NAME
    write_atomic(path, mf.to_json(scored))
    return scored


def test_a_later_metric_replaces_the_manifest_and_sends_no_weights(root: Path, store: Any) -> None:
    made = save(root, 10, None)
    grant(store, root)
    first = uploader(root)
    settle(first)
    assert [kept.val_bpb for kept in account(root).uploaded] == [None]
    key = PLACE.run("r1", "fast", "g1-slot-0", "weights.safetensors")
    sent = store.head_object(Bucket=BUCKET, Key=key)["LastModified"]
    scored = evaluated(root, made, 1.25)
    settle(uploader(root))  # another process: it knows by what was noted down
    assert [kept.val_bpb for kept in account(root).uploaded] == [1.25]
    assert mf.from_json(in_slot(store, "g1-slot-0", mf.MANIFEST_NAME), "slot") == scored
    assert store.head_object(Bucket=BUCKET, Key=key)["LastModified"] == sent
    held = {k["Key"] for k in store.list_objects_v2(Bucket=BUCKET)["Contents"]}
    assert not any("g1-slot-1" in name for name in held), "not a second time beside it"


def test_one_that_is_evaluated_while_it_goes_up_goes_on_with_what_was_sent(
    root: Path, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket_layout, "PIECE_BYTES", 1000)
    made = save(root, 10, None, size=4500)
    grants = grant(store, root)
    last = "fast/g1-slot-0/weights.safetensors"  # what is left after the full pieces
    lame = {**grants.puts, last: grants.puts[last].replace(BUCKET, "no-such-bucket")}
    grant(store, root, puts=lame)
    first = uploader(root)
    first.once()
    first.once()
    key = PLACE.run("r1", "fast", "g1-slot-0", "weights.safetensors.part-00000")
    sent = store.head_object(Bucket=BUCKET, Key=key)["LastModified"]
    scored = evaluated(root, made, 1.25)
    grant(store, root)
    settle(uploader(root))
    assert [kept.val_bpb for kept in account(root).uploaded] == [1.25]
    assert mf.from_json(in_slot(store, "g1-slot-0", mf.MANIFEST_NAME), "slot") == scored
    assert store.head_object(Bucket=BUCKET, Key=key)["LastModified"] == sent


def test_slots_are_written_again_but_never_the_best_or_the_latest(root: Path, store: Any) -> None:
    grant(store, root)
    made = uploader(root)
    for step, bpb in ((10, 1.0), (20, 2.0), (30, 1.9), (40, 1.8), (50, 1.7)):
        save(root, step, bpb)
        settle(made)
        steps = {kept.step for kept in account(root).uploaded}
        assert {10, step} <= steps
    assert len(steps) == 4


def lame(grants: bk.Grants, slot: str, *names: str) -> dict[str, str]:
    """The grants' requests, those of these objects for a bucket that is not there."""
    keys = {f"fast/{slot}/{name}" for name in names}
    return {
        key: url.replace(BUCKET, "no-such-bucket") if key in keys else url
        for key, url in grants.puts.items()
    }


def test_a_slots_manifest_is_emptied_first_however_often_that_fails(root: Path, store: Any) -> None:
    grants = grant(store, root)
    made = uploader(root)
    for step, bpb in ((10, 1.0), (20, 2.0), (30, 1.9), (35, 1.85)):
        save(root, step, bpb)
        settle(made)
    assert mf.from_json(in_slot(store, "g1-slot-1", mf.MANIFEST_NAME), "").step == 20
    save(root, 40, 1.8)
    grant(store, root, puts=lame(grants, "g1-slot-1", mf.MANIFEST_NAME))
    made.once()
    weights = in_slot(store, "g1-slot-1", "weights.safetensors")
    grant(store, root, puts=lame(grants, "g1-slot-1", "weights.safetensors"))
    uploader(root).once()
    assert in_slot(store, "g1-slot-1", mf.MANIFEST_NAME) == b""
    assert in_slot(store, "g1-slot-1", "weights.safetensors") == weights
    grant(store, root)
    settle(uploader(root))
    assert mf.from_json(in_slot(store, "g1-slot-1", mf.MANIFEST_NAME), "").step == 40


def test_trying_again_what_the_store_does_not_take_is_no_progress(root: Path, store: Any) -> None:
    """The pod would wait for it until its hard stop."""
    clock = [1000.0]
    grants = grant(store, root)
    grant(store, root, puts=lame(grants, "g1-slot-0", "weights.safetensors"))
    save(root, 10, 1.0)
    made = Uploader(root, POD, now=lambda: clock[0], sleep=lambda seconds: None)
    made.once()
    for _ in range(4):
        made.once()
        assert "NoSuchBucket" in account(root).trouble
        assert account(root).moved_boot == 1000.0
        clock[0] += 100.0
    grant(store, root)
    settle(made)
    assert account(root).moved_boot == clock[0]


def test_a_damaged_checkpoint_is_given_up_and_never_told(root: Path, store: Any) -> None:
    save(root, 10, 1.0)
    folder = root / contract.RUNS_DIR / "r1" / "fast" / contract.CHECKPOINTS_DIR
    weights = folder / mf.step_dir_name(10) / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"?")
    grant(store, root)
    settle(uploader(root))
    assert account(root).uploaded == ()
    assert [kept.step for kept in account(root).given_up] == [10]
    assert "Contents" not in store.list_objects_v2(Bucket=BUCKET)


def test_a_pod_without_its_notes_writes_around_what_its_slots_hold(root: Path, store: Any) -> None:
    save(root, 10, 1.0)
    grants = grant(store, root)
    settle(uploader(root))
    held = {"g1-slot-0": account(root).uploaded[0]}
    os.unlink(root / contract.PODS_DIR / POD / bk.UPLOADS_NAME)
    share = replace(grants.phases["fast"], held=held)
    grant(store, root, phases={"fast": share})
    save(root, 20, 2.0)
    settle(uploader(root))
    assert mf.from_json(in_slot(store, "g1-slot-0", mf.MANIFEST_NAME), "").step == 10
    assert mf.from_json(in_slot(store, "g1-slot-1", mf.MANIFEST_NAME), "").step == 20


def test_no_signature_is_written(root: Path, store: Any, capfd: pytest.CaptureFixture[str]) -> None:
    grants = grant(store, root)
    save(root, 10, 1.0)
    lame = {key: url.replace(BUCKET, "no-such-bucket") for key, url in grants.puts.items()}
    grant(store, root, puts=lame)
    made = uploader(root)
    made.once()
    made.once()
    pod_dir = root / contract.PODS_DIR / POD
    written = (pod_dir / bk.UPLOADS_NAME).read_text() + "".join(capfd.readouterr())
    assert "NoSuchBucket" in written
    assert "Signature" not in written
    assert CANARY not in written
    assert (pod_dir / bk.GRANTS_NAME).stat().st_mode & 0o777 == 0o600


def test_a_folder_is_fetched_verified_and_put_in_place(root: Path, store: Any) -> None:
    data = hashlib.shake_128(b"data").digest(5000)
    key = PLACE.key("data", "abc", "train.bin")
    store.put_object(Bucket=BUCKET, Key=key, Body=data)
    url = store.generate_presigned_url("get_object", Params={"Bucket": BUCKET, "Key": key})
    file = bk.FileGet("train.bin", len(data), hashlib.sha256(data).hexdigest(), (url,))
    wrong = replace(file, sha256="0" * 64)
    folder = str(root / "data" / "abc")
    grant(store, root, gets=(bk.FolderGet(folder, (wrong,)),))
    uploader(root).once()
    assert not Path(folder).exists()
    assert "damaged" in account(root).trouble
    grant(store, root, gets=(bk.FolderGet(folder, (file,)),))
    uploader(root).once()
    assert account(root).fetched
    assert (Path(folder) / "train.bin").read_bytes() == data


def test_where_the_furthest_is_damaged_the_one_before_is_taken(root: Path, store: Any) -> None:
    """And is left where it is, where the furthest came: but not what is to lie beside that."""
    data = hashlib.shake_128(b"weights").digest(5000)
    gets = []
    for step in (20, 10):
        key = PLACE.run("r1", "fast", f"g1-slot-{step}", "weights.safetensors")
        store.put_object(Bucket=BUCKET, Key=key, Body=data)
        url = store.generate_presigned_url("get_object", Params={"Bucket": BUCKET, "Key": key})
        file = bk.FileGet("weights.safetensors", 5000, hashlib.sha256(data).hexdigest(), (url,))
        folder = root / "runs" / "r1" / "fast" / "checkpoints" / mf.step_dir_name(step)
        gets.append(bk.FolderGet(str(folder), (file,), needed=False))
    damaged = replace(gets[0], files=(replace(gets[0].files[0], sha256="0" * 64),))
    grant(store, root, gets=(damaged, gets[1]))
    tries = uploader(root)
    while not tries.once() or not account(root).fetched:
        assert account(root).trouble
    assert account(root).fetched
    assert not Path(gets[0].folder).exists()
    assert (Path(gets[1].folder) / "weights.safetensors").read_bytes() == data

    shutil.rmtree(gets[1].folder)
    (root / contract.PODS_DIR / POD / bk.UPLOADS_NAME).unlink()
    grant(store, root, gets=tuple(gets))
    settle(uploader(root))
    assert Path(gets[0].folder).exists()
    assert not Path(gets[1].folder).exists()

    (root / contract.PODS_DIR / POD / bk.UPLOADS_NAME).unlink()
    grant(store, root, gets=(gets[0], replace(gets[1], beside=True)))
    settle(uploader(root))
    assert Path(gets[1].folder).exists()
    shutil.rmtree(gets[1].folder)
    (root / contract.PODS_DIR / POD / bk.UPLOADS_NAME).unlink()
    lost = replace(damaged, folder=gets[1].folder, beside=True)
    grant(store, root, gets=(gets[0], lost))
    tries = uploader(root)
    while not tries.once() or not account(root).fetched:
        assert account(root).trouble
    assert account(root).fetched, "what cannot be had is done without"


# -- the agent's report ---------------------------------------------------------------------------


class Telling:
    """A pod that says what it is told to, by a clock of its own."""

    def __init__(self, root: Path, store: Any) -> None:
        self.now = 1000.0
        self.lines: list[str] = []
        self._dir, self._store, self.key = (
            root / contract.PODS_DIR / POD,
            store,
            PLACE.run("r1", report_name(1)),
        )
        url = store.generate_presigned_url("put_object", Params={"Bucket": BUCKET, "Key": self.key})
        self.grants = grant(store, root, report=url)
        self.teller = ReportUploader(
            self._dir, lambda: self.grants, self.lines.append, now=lambda: self.now
        )

    def say(self, step: int, result: str | None = None, pod: str = POD) -> None:
        phase = contract.PhaseReport("fast", step=step)
        report = contract.AgentReport(
            "r1", pod, 1, 7, 0.0, self.now, (phase,), 1.0, 2.0, result=result
        )  # fmt: skip
        write_atomic(self._dir / contract.REPORT_NAME, contract.dump(report))

    def stored(self) -> contract.AgentReport:
        return contract.load_report(
            self._store.get_object(Bucket=BUCKET, Key=self.key)["Body"].read()
        )

    def told(self) -> str:
        return Transfer(self._dir.parents[1], POD, lambda: TrainerSetup("")).stored_result()


@pytest.fixture
def telling(root: Path, store: Any) -> Telling:
    return Telling(root, store)


def test_what_the_agent_says_is_stored_by_the_minute_its_result_at_once(
    telling: Telling,
) -> None:
    assert not telling.teller.once()
    telling.say(10)
    assert telling.teller.once()
    telling.say(20)
    telling.now += 59.0
    assert not telling.teller.once()
    telling.now += 1.0
    assert telling.teller.once()
    assert telling.stored().phases[0].step == 20
    assert telling.told() == ""
    telling.say(25, "finished")
    telling.now += 1.0
    assert telling.teller.once()
    assert (telling.stored().result, telling.told()) == ("finished", "finished")
    telling.now += 5.0
    assert not telling.teller.once(), "what was told is not told again and again"


def test_a_result_that_is_not_taken_is_tried_again_and_not_told_before(telling: Telling) -> None:
    right = telling.grants
    telling.grants = replace(right, report=right.report.replace(BUCKET, "no-such-bucket"))
    telling.say(25, "finished")
    for _ in range(2):
        assert not telling.teller.once()
        telling.now += 1.0
    assert len(telling.lines) == 1
    assert "NoSuchBucket" in telling.lines[0]
    assert "Signature" not in telling.lines[0]
    assert telling.told() == ""
    telling.grants = right
    assert telling.teller.once()
    assert telling.told() == "finished"


def test_nothing_is_told_for_another_pod_nor_without_a_grant(telling: Telling) -> None:
    telling.say(25, "finished", pod=POD.replace("g1", "g2"))
    assert not telling.teller.once()
    telling.say(25, "finished")
    telling.grants = replace(telling.grants, report="")
    assert not telling.teller.once()
    assert telling.told() == ""
