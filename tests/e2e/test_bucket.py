"""A run whose checkpoints survive in a bucket: plan, stop at the budget, fetch without the pod."""

from __future__ import annotations

import json
import shutil

import pytest

from tests.e2e.runpod_user import ACCEPT, LAUNCH, RentedUser
from tests.e2e.user import SMALL, User, until
from trmcloud.core.errors import Outcome
from trmcloud.core.money import ZERO, Usd

pytest.importorskip("boto3")
pytest.importorskip("moto")

from tests.standins.s3 import BUCKET, CANARY, S3


@pytest.fixture
def saver(user: User, s3: S3) -> User:
    """A user of that store."""
    user.environment |= s3.environment
    return user


def place(user: User) -> tuple[str, str]:
    return ("--bucket", f"s3://{BUCKET}/{user.folder.name.replace('_', '-')}")


def forget(user: User) -> None:
    """This machine's own copies of every checkpoint are lost."""
    for folder in user.home.glob("runs/*/*/checkpoints"):
        shutil.rmtree(folder)


def test_a_run_stops_at_its_budget_and_its_best_comes_from_the_bucket_alone(
    saver: User, s3: S3
) -> None:
    named = place(saver)
    plan = saver.json("launch", "local", *SMALL, *named, "--dry-run", "--json", "--budget", "1")
    assert any(each["message"].startswith(f"{named[1]}, uploaded") for each in plan["limits"])
    out = saver.run(
        "launch", "local", *SMALL, *named, "--phase", "fast", "--budget", "0.025", "-y", code=20
    )
    run = saver.only_run()
    assert run.outcome is Outcome.LANDED
    assert ZERO < run.settled <= Usd("0.025")
    assert saver.live_pods() == []
    assert f"trmcloud fetch-best {run.run_id}" in out
    forget(saver)
    best = saver.json("fetch-best", "--into", str(saver.folder / "best"), "--json")
    assert best["checkpoint"] == f"fast/step-{run.phases['fast'].step:08d}"
    names = {entry.name for entry in (saver.folder / "best").iterdir()}
    assert names == {"weights.safetensors", "optimizer.safetensors", "manifest.json"}
    (report,) = saver.json("report", "--json")["runs"]
    assert report["best"]["sha256"] == best["sha256"]
    assert report["bucket"] == f"{named[1]}/runs/{run.run_id}"
    assert report["billed_usd"] == run.settled.plain()
    assert report["bucket"] in saver.run("status", run.run_id)
    places = saver.json("prune", run.run_id, "--keep-best", "1", "-y", "--json")["places"]
    (pruned,) = (each for each in places if each["place"] == "bucket")
    assert pruned["keep"] == [best["checkpoint"]]
    left = s3.keys(BUCKET, named[1].removeprefix(f"s3://{BUCKET}/"))
    assert sum(key.endswith("manifest.json") and size > 0 for key, size in left.items()) == 1
    again = saver.json("fetch-best", "--into", str(saver.folder / "again"), "--json")
    assert again["sha256"] == best["sha256"]
    for path in saver.folder.rglob("*"):
        if path.is_file():
            assert CANARY.encode() not in path.read_bytes(), path


def stored_steps(s3: S3, prefix: str) -> set[int]:
    """The steps of the checkpoints that are whole in the bucket."""
    steps = set()
    for key, size in s3.keys(BUCKET, prefix).items():
        if key.endswith("/manifest.json") and size:
            steps.add(json.loads(s3.read(BUCKET, key))["step"])
    return steps


def test_a_rented_pod_that_is_lost_and_one_left_alone_live_on_in_the_bucket(
    renter_in: RentedUser, s3: S3, image_env: dict[str, str]
) -> None:
    """Data comes from the bucket, checkpoints go there, and so do the agents' last words: nobody
    pulls, nobody hears how it ends, and no pod knows a key."""
    named = place(renter_in)
    prefix = named[1].removeprefix(f"s3://{BUCKET}/")
    arguments = (*LAUNCH, "--steps", "150", "--budget", "0.30", *renter_in.data, *ACCEPT, *named)
    image_env["TRMCLOUD_STANDIN_FAULT"] = "hang@60"
    renter_in.run(*arguments, "-d")
    assert renter_in.only_run().trains
    (pod,) = renter_in.live()
    assert renter_in.holding(pod, CANARY) == ""
    assert any("/data/" in key and key.endswith("data.json") for key in s3.keys(BUCKET, prefix))
    until(lambda: stored_steps(s3, prefix) == {45}, within_s=60, what="its first one is stored")
    renter_in.standin.control.end(pod.id)
    lost = renter_in.close_books()
    assert lost.outcome is Outcome.UNREPORTED

    image_env["TRMCLOUD_STANDIN_FAULT"] = "hang@30"  # where one that begins anew comes by
    renter_in.run("resume", "-y", lost.run_id, "-d")
    until(lambda: not renter_in.live(), within_s=90, what="it ends by itself")
    run = renter_in.close_books()
    assert run.outcome is Outcome.FINISHED
    account = run.phases["fast"]
    assert (account.generation, account.outcome, account.step) == (2, "finished", 150)
    assert account.seconds["training"] > 0
    assert renter_in.checkpoints() == {}
    best = renter_in.json("fetch-best", "--into", str(renter_in.folder / "best"), "--json")
    assert best["checkpoint"] == "fast/step-00000150"
    (report,) = renter_in.json("report", "--json")["runs"]
    assert report["best"]["sha256"] == best["sha256"]
    assert report["outcome"] == "finished"
    assert report["parts_s"]["training"] > 0


@pytest.mark.parametrize(
    ("environment", "named", "code", "words"),
    [
        ({}, "s3://trmc-nowhere/x", 3, "no such bucket"),
        ({}, "trmc-e2e/x", 2, "is not a bucket"),
        ({"AWS_ENDPOINT_URL_S3": "https://s3api-eu-ro-1.runpod.io"}, "s3://vol/x", 2, "presigned"),
    ],
)
def test_a_bucket_that_cannot_be_used_is_refused_before_anything_starts(
    saver: User, environment: dict[str, str], named: str, code: int, words: str
) -> None:
    saver.environment |= environment
    err = saver.refused(
        *("launch", "local", *SMALL, "--phase", "fast", "--budget", "1", "-y"),
        *("--bucket", named),
        code=code,
    )
    assert words in err


def test_doctor_tries_the_bucket_that_the_environment_names(saver: User) -> None:
    saver.environment["TRMCLOUD_BUCKET"] = f"s3://{BUCKET}/doctor"
    found = {one["code"]: one for one in saver.json("doctor", "--json")["checks"]}
    assert found["bucket"]["passed"] is True
