"""The real ``huggingface_hub`` client as a second source: it accepts the stand-in's answers, and
what it sends is what the adapter sends."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.contract.huggingface_rig import HubRig, hub_rig, job_request
from tests.present import present
from tests.standins.huggingface.hub import USER
from tests.standins.huggingface.server import Logged

pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed")

from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError


@pytest.fixture
def rig() -> Iterator[HubRig]:
    with hub_rig() as made:
        yield made


@pytest.fixture
def client(rig: HubRig) -> HfApi:
    return HfApi(endpoint=rig.standin.url, token=rig.standin.token)


def sent(rig: HubRig, since: int) -> list[Logged]:
    """The requests since then, without the headers that name the client."""
    return [each for each in rig.standin.requests[since:] if "whoami" not in each.path]


def test_both_send_the_same_create(rig: HubRig, client: HfApi) -> None:
    rig.compute.create(job_request(rig))
    (ours,) = [each for each in sent(rig, 0) if each.method == "POST"]
    spec = ours.body
    since = len(rig.standin.requests)
    job = client.run_job(
        image=spec["dockerImage"],
        command=spec["command"],
        env=spec["environment"],
        secrets=spec["secrets"],
        flavor=spec["flavor"],
        timeout=spec["timeoutSeconds"],
        attempts=1,
        labels=spec["labels"],
        ssh=True,
    )
    (theirs,) = sent(rig, since)
    assert (theirs.method, theirs.path, theirs.body) == (ours.method, ours.path, ours.body)
    assert theirs.token == ours.token
    assert job.status.stage == "SCHEDULING"
    assert job.status.ssh_url == f"ssh://{job.id}@ssh.hf.jobs"


def test_both_ask_for_lists_jobs_and_ends_in_the_same_way(rig: HubRig, client: HfApi) -> None:
    job_id = rig.compute.create(job_request(rig))
    rig.on(10)
    questions = (
        (
            lambda: rig.api.jobs(labels={"trmcloud": "pod"}),
            lambda: list(
                client.list_jobs(
                    status=["SCHEDULING", "RUNNING"], labels={"trmcloud": "pod"}, namespace=USER
                )
            ),
        ),
        (lambda: rig.api.job(job_id), lambda: client.inspect_job(job_id=job_id)),
        (rig.api.hardware, client.list_jobs_hardware),
        (lambda: rig.api.cancel(job_id), lambda: client.cancel_job(job_id=job_id)),
    )
    for ours, theirs in questions:
        since = len(rig.standin.requests)
        ours()
        if ours is questions[-1][0]:
            rig.hub.jobs[job_id].stage = "RUNNING"
        theirs()
        one, other = sent(rig, since)
        assert (one.method, one.path, one.query, one.body) == (
            other.method, other.path, other.query, other.body,
        )  # fmt: skip


def test_it_reads_what_the_stand_in_answers(rig: HubRig, client: HfApi) -> None:
    wanted = job_request(rig)
    job_id = rig.compute.create(wanted)
    rig.on(65)
    info = client.inspect_job(job_id=job_id)
    assert (info.id, info.status.stage, info.flavor) == (job_id, "RUNNING", "l4x1")
    assert info.labels == {"trmcloud": "pod", "name": wanted.name}
    assert info.durations is not None
    assert (info.durations.scheduling_secs, info.durations.running_secs) == (5, 60)
    ours = present(rig.api.job(job_id))
    assert info.started_at is not None
    assert info.started_at.timestamp() == ours.started_at
    listed = {each.name: each for each in client.list_jobs_hardware()}
    assert listed["a100x8"].unit_cost_micro_usd == 333_333
    assert listed["a100x8"].accelerator is not None
    assert listed["a100x8"].accelerator.quantity == "8"


def test_pages_and_logs_are_read_alike(rig: HubRig, client: HfApi) -> None:
    rig.hub.knobs.page = 1
    made = {rig.compute.create(job_request(rig, generation=number)) for number in (1, 2, 3)}
    rig.on(10)
    assert (
        {job.id for job in client.list_jobs(namespace=USER)}
        == made
        == {job.id for job in rig.api.jobs()}
    )
    job_id = made.pop()
    rig.hub.jobs[job_id].log += [(rig.clock(), "one"), (rig.clock(), "two")]
    rig.hub.exited(rig.hub.jobs[job_id], 0)
    assert list(client.fetch_job_logs(job_id=job_id)) == ["one", "two"]
    assert rig.api.log(job_id, 20) == ["one", "two"]


def test_a_refusal_is_its_error_too(rig: HubRig, client: HfApi) -> None:
    rig.hub.knobs.credits_usd = 0.0
    with pytest.raises(HfHubHTTPError, match="Pre-paid credit balance is insufficient"):
        client.run_job(image="i", command=["x"])
