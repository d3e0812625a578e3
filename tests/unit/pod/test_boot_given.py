"""What a pod is started with: read strictly, laid out, and no newer file is overwritten."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.pod.container import given_environment, packed
from tests.unit.pod.leases import job_of
from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.contract.trainer_contract import load_job
from trmcloud.pod.agent.nodes import Nodes, read_nodes
from trmcloud.pod.agent.terminate import own_ways_of, ways_of
from trmcloud.pod.boot import lay_out, read_given


def test_files_that_are_newer_or_the_same_stay(tmp_path: Path, lease: contract.Lease) -> None:
    given = read_given(given_environment(lease, tmp_path))
    lay_out(given)
    job_path = tmp_path / contract.RUNS_DIR / "r1" / "fast" / contract.JOB_NAME
    lease_path = given.pod_dir / contract.LEASE_NAME
    before = [path.stat().st_mtime_ns for path in (job_path, lease_path)]
    lay_out(given)
    assert [path.stat().st_mtime_ns for path in (job_path, lease_path)] == before

    newer = replace(lease, epoch=7)
    lease_path.write_text(contract.dump(newer))
    lay_out(given)
    assert contract.load_lease(lease_path.read_text()) == newer

    lease_path.write_text("damaged")
    lay_out(given)
    assert contract.load_lease(lease_path.read_text()) == lease

    other = replace(job_of(lease, tmp_path), processes=8)
    lay_out(read_given(given_environment(lease, tmp_path, [other])))
    assert load_job(job_path.read_text()).processes == 8


def test_the_further_machines_of_a_pod_upload_nothing_and_end_no_other(
    tmp_path: Path, lease: contract.Lease
) -> None:
    environment = given_environment(replace(lease, uploads=True), tmp_path)
    environment[contract.ENV_PROVIDER] = "skypilot+shutdown"
    for told, hold in (("", False), ("2 0 10.0.0.1", False), ("2 1 10.0.0.1", True)):
        given = read_given({**environment, contract.ENV_NODES: told})
        assert (given.lease.hold, given.lease.uploads) == (hold, not hold)
    lay_out(given)
    assert read_nodes(given.pod_dir) == Nodes(2, 1, "10.0.0.1")
    environment |= {"TRMCLOUD_SKY_HOME": "/home/user", "TRMCLOUD_SKY_USER": "user"}
    ways = {way.name for way in ways_of(environment)}
    own = {way.name for way in own_ways_of(environment)}
    assert "poweroff" in own
    assert own < ways
    assert own_ways_of({contract.ENV_PROVIDER: "skypilot"}) == ()
    # Where the first one is lost it ends all of them, as that would have done.
    sky = {"TRMCLOUD_SKY_HOME": "/root", **environment}
    every = [way.name for way in own_ways_of(sky, whole=True)]
    assert every[0] == "skypilot teardown"
    assert set(every[1:]) == own
    assert own_ways_of({**sky, contract.ENV_PROVIDER: "none"}, whole=True) == ()
    for wrong in ("2", "2 2 h", "2 1 ", "two 1 h", "65 1 h", "0 0 h"):
        with pytest.raises(ValueError, match="which machine"):
            read_given({**environment, contract.ENV_NODES: wrong})


def test_what_is_given_must_be_about_this_pod(tmp_path: Path, lease: contract.Lease) -> None:
    good = given_environment(lease, tmp_path)
    assert read_given(good).jobs == (job_of(lease, tmp_path),)
    assert read_given({k: v for k, v in good.items() if k != contract.ENV_CHECK}).check == "{}"
    foreign = replace(job_of(lease, tmp_path), run_id="r2")
    climbing = replace(job_of(lease, tmp_path), phase="..")
    for changes in (
        {contract.ENV_POD: "trmc-0badcafe-r1-g2-1700000000"},
        {contract.ENV_POD: "somebody"},
        {contract.ENV_JOBS: packed(json.dumps([json.loads(contract.dump(foreign))]))},
        {contract.ENV_JOBS: packed(json.dumps([json.loads(contract.dump(climbing))]))},
        {contract.ENV_JOBS: packed("{}")},
        {contract.ENV_ROOT: "relative"},
        {contract.ENV_LINGER_S: "long"},
    ):
        with pytest.raises(ValueError, match=r"."):
            read_given({**good, **changes})
