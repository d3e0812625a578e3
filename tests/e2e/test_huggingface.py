"""The commands against the stand-in of Hugging Face, whose jobs really run."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.rented import image, path_of, skip_without_pods
from tests.e2e.user import IMPATIENT, User
from tests.standins.huggingface.hub import Hub
from tests.standins.huggingface.machines import JobMachines
from tests.standins.huggingface.server import StandIn, serving
from trmcloud.core.contract.pod_contract import parse_pod_name

LAUNCH = (
    *("launch", "1xA100", "--provider", "huggingface", "--recipe", "trm-tiny", "--phase", "fast"),
    *("--budget", "2", "--accept-exposure", "3", "--set", "depth=1", "--set", "width=32"),
    *("--set", "vocab_size=256", "--set", "sequence=64", "--set", "eval_tokens=1024"),
    *("--set", "eval_every=10", "--set", "save_every=20", "--steps", "40", "-y"),
)


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
