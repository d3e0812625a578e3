"""What commands know and do of a run's bucket, with a real store and this machine's own files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.checkpoints import whole_checkpoint
from tests.plans import a_generation
from trmcloud.core.clock import Instant
from trmcloud.core.contract import manifest as mf
from trmcloud.core.contract.bucket_layout import AFTER_HARD_STOP_S, parse_place, report_name
from trmcloud.core.contract.pod_contract import AgentReport
from trmcloud.core.contract.records import MAX_JSON_BYTES, dump
from trmcloud.core.control import events as ev
from trmcloud.core.control.run_state import Errand, RunState, State, apply_event
from trmcloud.core.errors import ConflictError, ProviderError, UsageError
from trmcloud.core.money import ZERO, Usd
from trmcloud.core.spec.plan import Plan, RecordedPlan, plan_to_json
from trmcloud.operations.checkpoints import bucket_grants, fetching
from trmcloud.operations.checkpoints import sources as bc
from trmcloud.operations.checkpoints.bucket_grants import checkpoints_to_resume
from trmcloud.operations.checkpoints.inventory import plan_pruning
from trmcloud.operations.context import Buckets, Context, is_quiet
from trmcloud.operations.driving.observer import BucketReport
from trmcloud.operations.driving.reap import Did
from trmcloud.operations.driving.reconciling import reconcile
from trmcloud.operations.plans.launch_checks import check_loss
from trmcloud.operations.sending.staging import _to_go_on_from
from trmcloud.options import LaunchRequest
from trmcloud.ports.bucket import BucketCheckpoints
from trmcloud.wiring import build_context
from trmcloud.wiring_plans import build_planner

pytest.importorskip("boto3")
pytest.importorskip("moto")

from tests.standins.s3 import BUCKET, S3

POD = "trmc-abcd1234-r1-g1-1790003000"


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    request = LaunchRequest("1xA100", "trm-tiny", "fast", setting=["keep_best=1"])
    planner = build_planner(tmp_path_factory.mktemp("plans"))
    return planner.plan(planner.spec(request), tokens_available=10_000_000)


@pytest.fixture
def world(tmp_path: Path, s3: S3, monkeypatch: pytest.MonkeyPatch) -> Context:
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TRMCLOUD_HOME", str(tmp_path / "home"))
    return build_context()


@pytest.fixture
def bucketed(plan: Plan, tmp_path: Path) -> Plan:
    """The plan with a prefix of this test's own."""
    place = f"s3://{BUCKET}/{tmp_path.name.replace('_', '-')}"
    return replace(plan, spec=replace(plan.spec, bucket=place))


def run_of(plan: Plan, **changes: object) -> RunState:
    generation = a_generation(pod_name=POD, candidate_id=plan.candidates[0].id, up_at=0.0)
    run = RunState("r1", State.CLOSED, RecordedPlan(plan_to_json(plan)), generations=(generation,))
    return replace(run, **changes)  # type: ignore[arg-type]


def saved(world: Context, step: int, bpb: float | None, **more: Any) -> mf.CheckpointManifest:
    """A checkpoint that was pulled to this machine."""
    return whole_checkpoint(world.home, step, bpb, size=2000, **more)[1]


def shelf_of(world: Context, run: RunState) -> BucketCheckpoints:
    source = bc.BucketSource(world, run)
    assert source.list().trouble is None
    return source.shelf


def relayed(world: Context, plan: Plan, run: RunState, *made: mf.CheckpointManifest) -> None:
    generation = run.generations[0]
    for manifest in made:
        bc._relay(world, run, plan, generation, manifest, lambda done, whole: None)


def test_what_is_pulled_goes_on_to_a_store_without_pods(world: Context, bucketed: Plan) -> None:
    run = run_of(bucketed)
    every = [saved(world, 10, 1.0), *(saved(world, step, 2.0) for step in (20, 30, 40, 50))]
    relayed(world, bucketed, run, *every, every[-1])
    stored = {one.manifest.step for one in shelf_of(world, run).whole}
    assert {10, 50} <= stored, "the best and the latest are never written over"
    assert len(stored) == 4
    on, before = checkpoints_to_resume(run, shelf_of(world, run))
    assert on.manifest.step == 50 > before.manifest.step
    done = ev.PhaseEnded(1, "fast", "finished", 50, 1.0, {})
    assert checkpoints_to_resume(replace(run, phases={"fast": done}), shelf_of(world, run)) == ()


def close_a_run(world: Context, bucketed: Plan) -> None:
    """r1 has had a pod with grants, and is over."""
    epoch = world.ledger.open_run(
        "r1",
        ev.RunPlanned(plan_to_json(bucketed), Usd(5), "default"),
        Usd(1),
        world.caller.controller,
        100.0,
    )
    candidate = bucketed.candidates[0].id
    events: list[ev.RunEvent] = [
        ev.PodIntended(1, POD, "local", candidate, Usd(1), 3000.0, 3600.0),
        ev.PodUp(1, POD, Usd(1)),
        ev.AgentUp(1),
        ev.ResultKnown("finished"),
        ev.PodGone(1, 200.0),
        ev.Settled(1, Usd("0.5"), Usd("0.5")),
        ev.Closed("finished"),
    ]
    for event in events:
        world.ledger.append("r1", epoch, [event], 100.0)
    world.ledger.release("r1", epoch)


def test_a_bucket_that_was_down_is_asked_again_by_who_lives(world: Context, bucketed: Plan) -> None:
    close_a_run(world, bucketed)
    asked: list[float] = []
    wall = 4000.0

    class Down:
        def oversized(self, run_id: str, most: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
            asked.append(wall)
            if len(asked) < 3:
                raise ProviderError("503 from the bucket")
            return ()

    clock = SimpleNamespace(now=lambda: Instant(wall, wall, "boot"))
    lives_on = replace(world, clock=clock, buckets=Buckets(lambda place: Down()))  # type: ignore[arg-type, return-value]
    run = world.ledger.read().runs["r1"]
    said = []
    for wall in (4000.0, 4001.0, 4599.0, 4600.0, 4300.0, 5199.0, 5200.0):  # noqa: B007
        said.append(bucket_grants.oversized_objects(lives_on, run))
    # A clock that is set back does not put it off.
    assert asked == [4000.0, 4600.0, 4300.0, 5199.0, 5200.0]
    assert said == [None, None, None, None, (), (), ()]


def test_what_a_pod_was_not_granted_is_deleted_and_its_rent_is_counted(
    world: Context, bucketed: Plan, s3: S3
) -> None:
    """Once all that was signed has ended: till then whoever has it could store it again."""
    close_a_run(world, bucketed)
    place = parse_place(bucketed.spec.bucket)
    world.buckets.at(bucketed.spec.bucket).claim("r1", world.ledger.ledger_id)
    large = place.run("r1", "fast", "g1-slot-0", "state.json")
    fine = place.run("r1", "fast", "g1-slot-0", "weights.safetensors")
    for key, size in ((large, (64 << 20) + 1), (fine, 1000)):
        s3.client.put_object(Bucket=BUCKET, Key=key, Body=bytes(size))

    def at(wall: float) -> tuple[list[Did], RunState]:
        clock = SimpleNamespace(now=lambda: Instant(wall, wall, "boot"))
        there = replace(build_context(), clock=clock)
        return reconcile(there), there.ledger.read().runs["r1"]

    said, run = at(3600.0 + AFTER_HARD_STOP_S)
    assert (said, run.settled) == ([], Usd("0.5"))
    assert large in s3.keys(BUCKET)
    said, run = at(3000.0 + 500 * 3600.0)
    (line,) = said
    assert "r1: its pod uploaded 0.1 GB without a grant: they were deleted from s3://" in str(line)
    assert run.settled > Usd("0.5")
    # Since the pod was asked for, at $0.023 per GB and month.
    assert run.settled == Usd("0.5") + bucket_grants.storage_rent((64 << 20) + 1, 500 + 2900 / 3600)
    assert bucket_grants.storage_rent(10**9, 730.0) == Usd("0.023")
    assert large not in s3.keys(BUCKET)
    assert fine in s3.keys(BUCKET)
    assert world.ledger.read().line("account", "").settled == run.settled
    assert at(3000.0 + 501 * 3600.0)[0] == []
    assert is_quiet(world), "nothing is owed any more"


def test_what_was_found_twice_is_counted_once(world: Context, bucketed: Plan) -> None:
    """A command that dies between its record and the deletion leaves both to the next one."""
    run = run_of(bucketed)
    ours = Usd("0.01")
    for size_bytes, amount, rent in (
        (7, ours, ours),
        (5, Usd("0.004"), ours),
        (9, Usd("0.011"), Usd("0.011")),
        (0, ZERO, Usd("0.011")),
    ):
        event = ev.BucketSwept(run.generations[-1].number, size_bytes, amount)
        run = apply_event(run, ev.Record(9, run.run_id, 1, 9.0, event))
        assert run.swept.rent == rent
        assert run.settled == run_of(bucketed).settled + rent
        assert bool(run.swept.generation) is (size_bytes == 0)
    assert run.swept.size_bytes == 9


def test_what_was_found_before_is_counted_from_then_on(bucketed: Plan) -> None:
    """A command dies before it has deleted what it found, and the run is resumed meanwhile; another
    dies in the midst of deleting. What is found again was paid for up to then."""
    run = run_of(bucketed)

    def found(size_bytes: int, hours: float) -> None:
        nonlocal run
        event = bucket_grants.sweep_event(
            run, (("a/key", size_bytes),) if size_bytes else (), 3600 * hours
        )
        run = apply_event(run, ev.Record(9, run.run_id, 1, 3600 * hours, event))

    found(3 << 30, 100)
    assert run.swept.rent == bucket_grants.storage_rent(3 << 30, 100)
    run = replace(run, generations=(*run.generations, replace(run.generations[0], number=2)))
    found(3 << 30, 300)
    assert run.swept.rent == bucket_grants.storage_rent(3 << 30, 100) + bucket_grants.storage_rent(
        3 << 30, 200
    )
    before = run.swept.rent
    found(1 << 30, 400)
    assert run.swept.rent == before + bucket_grants.storage_rent(1 << 30, 100)
    found(0, 400)
    assert run.swept.generation == 2
    run = replace(run, generations=(*run.generations, replace(run.generations[0], number=3)))
    before = run.swept.rent
    found(2 << 30, 450)
    assert run.swept.rent == before + bucket_grants.storage_rent(2 << 30, 50), (
        "nothing was left at 400"
    )


def test_a_bucket_that_is_down_is_asked_again_by_the_next_command(
    world: Context, bucketed: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    granted = replace(run_of(bucketed).generations[0], agent_at=1.0)
    run = run_of(bucketed, generations=(granted,))
    asked = []

    class Down:
        def oversized(self, run_id: str, file_bytes: object) -> None:
            asked.append(run_id)
            raise ProviderError("503")

    world = replace(world, buckets=Buckets(lambda place: Down()))  # type: ignore[arg-type,return-value]
    world = replace(world, clock=SimpleNamespace(now=lambda: Instant(100.0, 100.0, "boot")))
    assert bucket_grants.oversized_objects(world, run) is None
    assert bucket_grants.oversized_objects(world, replace(run, run_id="r2")) is None
    assert asked == ["r1"], "within one command once"


def test_pruning_spares_what_was_saved_before_the_cooldown_until_the_storage_week_ends(
    world: Context, bucketed: Plan, s3: S3
) -> None:
    run = run_of(bucketed)
    made = [
        saved(world, 10, 3.0),
        saved(world, 20, 1.0, cooldown_from=10),
        saved(world, 30, 2.0, cooldown_from=10),
    ]
    relayed(world, bucketed, run, *made)
    found = bc.BucketSource(world, run).list().whole
    pruning = fetching.what_to_prune(found, 1)
    assert pruning.checkpoints == ()
    assert [m.step for m in bc.BucketSource(world, run).dropped(pruning)] == [20], (
        "from 10 a run may go on"
    )
    items = {item.local.name: item.sha256 for item in _to_go_on_from(world.files, run)}
    assert sorted(items) == ["step-00000010", "step-00000030"], "what a new pod is sent"
    resumable = checkpoints_to_resume(run, shelf_of(world, run))
    assert [each.manifest.step for each in resumable] == [30, 20, 10]
    ended = replace(run, generations=(replace(run.generations[0], ended_at=1000.0),))
    for days, gone in ((6.9, []), (7.1, [10])):
        now = 1000.0 + days * 86_400
        clock = SimpleNamespace(now=lambda now=now: Instant(now, now, "boot"))
        for each in plan_pruning(replace(world, clock=clock), ended, 1):
            assert [m.step for m in each.pruning.checkpoints] == gone


def test_what_is_known_is_asked_once_until_a_resume(world: Context, bucketed: Plan, s3: S3) -> None:
    run = run_of(bucketed)
    relayed(world, bucketed, run, saved(world, 10, 1.0))
    assert [m.step for m in bc.known_in_bucket(world, run)] == [10]
    relayed(world, bucketed, run, saved(world, 20, 0.5))
    assert [m.step for m in bc.known_in_bucket(world, run)] == [10]
    again = replace(run, generations=(*run.generations, replace(run.generations[0], number=2)))
    assert sorted(m.step for m in bc.known_in_bucket(world, again)) == [10, 20]
    assert bc.known_in_bucket(world, replace(again, state=State.RUNNING)) == ()


def test_pruning_spares_the_latest_ones_optimizer_and_never_another_ledgers_run(
    world: Context, bucketed: Plan, s3: S3
) -> None:
    run = run_of(bucketed)
    relayed(
        world, bucketed, run, *(saved(world, s, b) for s, b in ((10, 1.0), (20, 3.0), (30, 2.0)))
    )
    source = bc.BucketSource(world, run)
    pruning = fetching.what_to_prune(source.list().whole, 1)
    assert [m.step for m in source.dropped(pruning)] == [10]
    assert source.freed_bytes(pruning) == 4000 + 2000
    with pytest.raises(ConflictError):
        bc.BucketSource(world, replace(run, state=State.RUNNING)).prune(pruning)
    source.prune(pruning)
    left = {one.manifest.step: one.manifest for one in shelf_of(world, run).whole}
    assert {step: len(made.files) for step, made in left.items()} == {10: 1, 30: 2}
    assert sorted(m.step for m in bc.known_in_bucket(world, run)) == [10, 30]
    owner = f"{run.bucket.removeprefix(f's3://{BUCKET}/')}/runs/r1/owner.json"
    theirs = json.dumps({"ledger": "another", "run": "r1"}).encode()
    s3.client.put_object(Bucket=BUCKET, Key=owner, Body=theirs)
    with pytest.raises(ConflictError, match="from another ledger"):
        source.prune(pruning)


def test_a_store_that_is_down_is_a_trouble_and_no_end(
    world: Context, bucketed: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trmcloud.adapters.s3 import client

    monkeypatch.setattr(client, "TRIES", 1)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    run = run_of(bucketed)
    found = bc.BucketSource(world, run).list()
    assert isinstance(found.trouble, ProviderError)
    assert bc.known_in_bucket(world, run) == ()
    assert not list(world.home.glob("runs/r1/bucket.json"))


class Clock:
    """One that is set by hand."""

    def __init__(self) -> None:
        self.wall = 1000.0

    def now(self) -> Instant:
        return Instant(self.wall, self.wall, "here")

    def sleep(self, seconds: float) -> None:
        self.wall += seconds


def ran(plan: Plan, **changes: object) -> RunState:
    """A run whose pod was at work when it was last seen."""
    run = run_of(plan, state=State.RUNNING)
    (generation,) = run.generations
    return replace(run, generations=(replace(generation, agent_at=5.0),), **changes)  # type: ignore[arg-type]


def test_a_last_word_is_asked_for_and_kept(world: Context, bucketed: Plan, s3: S3) -> None:
    clock, run, left = Clock(), ran(bucketed), BucketReport()
    world = replace(world, clock=clock)
    place = parse_place(run.bucket)

    def say(content: bytes) -> None:
        s3.client.put_object(Bucket=BUCKET, Key=place.run("r1", report_name(1)), Body=content)

    def known(gone: bool = True, silent_s: float = 0.0, run: RunState = run) -> str | None:
        report = left.of(world, run, bucketed, gone=gone, silent_s=silent_s)
        return None if report is None else report.result or "none"

    report = AgentReport("r1", POD, 1, 7, 0.0, 0.0, (), 1.0, 2.0)
    say(dump(report).encode())
    assert known(gone=False, silent_s=59.0) is None, "a link may falter"
    assert known(gone=False, silent_s=60.0) == "none"
    say(dump(replace(report, result="landed")).encode())
    assert known(gone=False, silent_s=61.0) == "none", "asked now and then"
    assert known() == "landed", "one that is gone has said its last word"
    say(b"")
    clock.wall += 1000.0
    assert known() == "landed", "kept"
    settling = replace(run, state=State.SETTLING)
    for other in (
        replace(settling, result="failed"),
        replace(settling, errand=Errand("c0")),
        run_of(bucketed),
    ):
        assert known(run=other) is None
    for hostile in (b"", b"[]", b"x" * (MAX_JSON_BYTES + 1), dump(report).encode()[:-1]):
        say(hostile)
        left = BucketReport()
        assert known(run=settling) is None


def test_a_store_that_is_down_when_a_word_is_wanted_is_asked_again_after_a_minute(
    world: Context, bucketed: Plan, s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, run, left = Clock(), ran(bucketed), BucketReport()
    world = replace(world, clock=clock)
    report = AgentReport("r1", POD, 1, 7, 0.0, 0.0, (), 1.0, 2.0, result="finished")
    key = parse_place(run.bucket).run("r1", report_name(1))
    s3.client.put_object(Bucket=BUCKET, Key=key, Body=dump(report).encode())
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    assert left.of(world, run, bucketed, gone=True, silent_s=0.0) is None
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    clock.wall += 59.0
    assert left.of(world, run, bucketed, gone=True, silent_s=0.0) is None
    clock.wall += 1.0
    assert left.of(world, run, bucketed, gone=True, silent_s=0.0) == report


def test_only_what_its_pod_uploads_itself_may_be_left_alone(plan: Plan, bucketed: Plan) -> None:
    check_loss(bucketed, detached=True, accepted=False)
    pulled = replace(bucketed, spec=replace(bucketed.spec, bucket_relayed=True))
    for lacking in (plan, pulled):
        with pytest.raises(
            UsageError,
            match="with -d no command pulls the checkpoints: they would be deleted with the pod",
        ):
            check_loss(lacking, detached=True, accepted=False)
    assert bucketed.reservation >= ZERO


def test_a_later_metric_is_passed_on_to_the_store_and_wins(world: Context, bucketed: Plan) -> None:
    run = run_of(bucketed)
    saved(world, 10, 2.0)
    early = saved(world, 20, None)
    relayed(world, bucketed, run, early)
    [stored] = shelf_of(world, run).whole
    assert stored.manifest == early
    scored = mf.with_metric(early, 1.25, (3.0, 2.0))
    relayed(world, bucketed, run, scored, early)
    [again] = shelf_of(world, run).whole
    assert (again.manifest, again.at) == (scored, stored.at)

    # The copy here is from before the metric: what the store says of the same weights counts.
    assert fetching.choose(world, run).step == 10
    best = fetching.choose(world, run, also=(), told=[again.manifest])
    assert (best.step, best.val_bpb) == (20, 1.25)
