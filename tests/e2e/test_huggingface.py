"""The commands against the stand-in of Hugging Face, whose jobs really run."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.rented import image, path_of, skip_without_pods
from tests.e2e.user import IMPATIENT, User, until
from tests.standins.huggingface.buckets import Gateway, bucket_gateway
from tests.standins.huggingface.hub import Hub
from tests.standins.huggingface.machines import JobMachines
from tests.standins.huggingface.server import StandIn, serving
from tests.standins.s3 import BUCKET, CANARY, S3
from trmcloud.adapters.ledger.sqlite import SqliteLedger
from trmcloud.core.contract.pod_contract import PodName, parse_pod_name
from trmcloud.core.control.run_state import State
from trmcloud.core.errors import Outcome

LAUNCH = (
    *("launch", "1xA100", "--provider", "huggingface", "--recipe", "trm-tiny", "--phase", "fast"),
    *("--budget", "2", "--accept-exposure", "3", "--set", "depth=1", "--set", "width=32"),
    *("--set", "vocab_size=256", "--set", "sequence=64", "--set", "eval_tokens=1024"),
    *("--set", "eval_every=10", "--set", "save_every=20", "--steps", "40", "-y"),
)


@pytest.fixture
def gateway(s3: S3) -> Iterator[Gateway]:
    """The storage buckets of the same account, on another store."""
    with bucket_gateway(s3.port) as made:
        yield made


@pytest.fixture
def jobs(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[StandIn]:
    """A stand-in whose jobs run with an image that can train, and reach the buckets of a test that
    has them."""
    skip_without_pods()
    inside = image(tmp_path / "image")
    has_buckets = "gateway" in request.fixturenames
    reach = request.getfixturevalue("gateway").ports if has_buckets else ()
    machines = JobMachines(tmp_path / "hub", time.time, [inside], path_of(inside), reach)
    hub = Hub(time.time, machines)
    hub.knobs.scheduling_s = 0.3
    machines.hub = hub
    with serving(hub) as standin:
        machines.api_url = standin.url
        yield standin


@pytest.fixture
def tenant(tmp_path: Path, jobs: StandIn) -> User:
    """A user of that account, to whom lists prove within seconds that a job is gone."""
    user = User(tmp_path, program=IMPATIENT)
    machines = jobs.hub.machines
    assert isinstance(machines, JobMachines)
    user.environment |= jobs.environment | {
        "TRMCLOUD_HF_SSH_KEY": str(machines.user_key),
        "TRMCLOUD_HF_IMAGE": "an/image:with-this-machines-torch",
    }
    return user


def data(user: User) -> tuple[str, str]:
    text = user.folder / "text.txt"
    text.write_text("def f(x):\n    return x\n" * 3000)
    return ("--data", str(text))


def test_a_training_is_planned_rented_watched_fetched_and_billed(
    jobs: StandIn, tenant: User
) -> None:
    planned = tenant.run(*LAUNCH, *data(tenant), "--dry-run")
    assert "Hugging Face" in planned or "huggingface" in planned
    assert jobs.hub.jobs == {}
    tenant.run(*LAUNCH, *data(tenant))
    (job,) = jobs.hub.jobs.values()
    assert job.ended_by in ("exit", "api")
    name = parse_pod_name(job.name)
    assert name is not None
    assert job.timeout_s is not None
    # Reckoned as the request is written; on a busy machine it arrives some seconds later.
    assert -3 <= job.timeout_s - (name.hard_stop_at - job.made_at) <= 30
    (run,) = tenant.ledger().runs.values()
    assert not run.live
    into = tenant.folder / "best"
    tenant.run("fetch-best", run.run_id, "--into", str(into))
    assert any(into.rglob("*.safetensors")) or any(into.iterdir())
    billed = f"billed ${jobs.hub.billed(job):.4f}"
    assert billed in tenant.run("report", run.run_id), "a begun minute is billed whole"
    assert "no pod without a run" in tenant.run("admin", "reap").lower()
    assert jobs.hub.live() == []


def test_checkpoints_of_a_job_live_on_in_a_storage_bucket(
    jobs: StandIn, tenant: User, gateway: Gateway, s3: S3
) -> None:
    """Data and checkpoints go by presigned requests: the job has neither token nor key."""
    tenant.environment |= s3.environment | {"AWS_ENDPOINT_URL_S3": gateway.url}
    place = ("--bucket", f"s3://{BUCKET}/{tenant.folder.name.replace('_', '-')}")
    tenant.run(*LAUNCH, *data(tenant), *place)
    (run,) = tenant.ledger().runs.values()
    assert run.outcome is Outcome.FINISHED
    (job,) = jobs.hub.jobs.values()
    assert CANARY not in repr(job.spec)
    for folder in tenant.home.glob("runs/*/*/checkpoints"):
        shutil.rmtree(folder)
    best = tenant.json("fetch-best", "--into", str(tenant.folder / "best"), "--json")
    assert best["checkpoint"] == "fast/step-00000040"
    assert gateway.cached_gets > 0, "the job brought its data by way of the cache"
    assert gateway.refused == []


def test_a_smoke_run_sees_the_time_out_and_the_exit_end_real_jobs(
    jobs: StandIn, tenant: User
) -> None:
    words = ("--provider", "huggingface", "--max-usd", "0.6", "--minutes", "0.5", "-y")
    told = tenant.run("smoke", *words)
    print(told)
    first, second = jobs.hub.jobs.values()
    assert (first.ended_by, first.stage) == ("timeout", "ERROR")
    assert (second.ended_by, second.stage) == ("exit", "COMPLETED")
    known = {layer for provider, layer in tenant.ledger().verified if provider == "huggingface"}
    assert known == {"timeout", "agent"}


def test_status_and_stop_reach_a_live_job(jobs: StandIn, tenant: User) -> None:
    words = list(LAUNCH)
    words[words.index("--steps") + 1] = "100000"
    launch = tenant.start(*words, *data(tenant))
    until(lambda: any(run.state is State.RUNNING for run in tenant.ledger().runs.values()))
    (run,) = tenant.ledger().runs.values()
    (shown,) = tenant.json("status", run.run_id, "--json")["runs"]
    layers = {layer["name"]: layer["state"] for layer in shown["guards"]}
    assert (layers["timeout"], layers["agent"]) == ("armed", "armed")
    tenant.run("stop", "-y", run.run_id)
    launch.communicate(timeout=150)
    assert tenant.only_run().outcome is Outcome.STOPPED
    assert jobs.hub.live() == []


@pytest.fixture
def on_paper(tmp_path: Path) -> Iterator[StandIn]:
    with serving(Hub(time.time)) as standin:
        yield standin


def test_reap_ends_a_job_that_no_run_owns_and_no_other(on_paper: StandIn, tmp_path: Path) -> None:
    user = User(tmp_path, program=IMPATIENT, environment=dict(on_paper.environment))
    user.run("budget", "show")
    ledger_id = SqliteLedger(user.ledger_path).ledger_id
    stray = str(PodName(ledger_id, "r-0dd0dd", 1, int(time.time()) + 3600))
    spec = {"command": ["sleep", "9999"], "dockerImage": "an/image", "flavor": "a100-large"}
    for name in (stray, "somebody-elses"):
        on_paper.hub.start({**spec, "labels": {"name": name}, "timeoutSeconds": 3600})
    assert f"{stray} on huggingface: no live run of this ledger owns it" in user.run(
        "admin", "reap"
    )
    assert len(on_paper.hub.live()) == 2, "without --yes it only lists"
    assert stray in user.run("admin", "reap", "-y")
    assert [job.name for job in on_paper.hub.live()] == ["somebody-elses"]


@pytest.mark.parametrize(
    ("knobs", "code", "said"),
    [
        ({"credits_usd": 0.0}, 27, "credits do not cover this"),
        ({"recorded_timeout": 1800}, 75, "a time-out of 1800 s"),
        ({"recorded_timeout": None}, 75, "a time-out of none"),
        ({"no_capacity": True}, 75, "Hugging Face has no free machine"),
    ],
)
def test_a_launch_that_gets_no_job_says_why_and_leaves_none(
    on_paper: StandIn, tmp_path: Path, knobs: dict[str, Any], code: int, said: str
) -> None:
    user = User(tmp_path, program=IMPATIENT, environment=dict(on_paper.environment))
    for name, value in knobs.items():
        setattr(on_paper.hub.knobs, name, value)
    process = user.start(*LAUNCH, *data(user))
    out, err = process.communicate(timeout=100)
    assert process.returncode == code, out + err
    assert said in out + err
    assert on_paper.hub.live() == []


def test_another_gpu_than_was_rented_is_ended_before_training(jobs: StandIn, tenant: User) -> None:
    jobs.hub.knobs.gpu_shown = "NVIDIA L40S"
    process = tenant.start(*LAUNCH, *data(tenant))
    out, err = process.communicate(timeout=100)
    assert process.returncode == 28, out + err
    assert "L40S" in out + err
    assert jobs.hub.live() == []
