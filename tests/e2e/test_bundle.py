"""A run's diagnostic bundle: made of a real launch on the stand-in, and replayed as a provider."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

from tests.e2e.runpod_user import ACCEPT, RentedUser
from tests.e2e.user import LAUNCH, User, until
from tests.standins.replay import replaying
from trmcloud.core.control.run_state import State
from trmcloud.providers.runpod.api import RunPodApi
from trmcloud.providers.runpod.http import Http

TOKEN = "hf_" + "Q" * 34
PASSWORD = "correct-horse-battery"


def unpacked(path: Path) -> dict[str, str]:
    with tarfile.open(path, "r:gz") as archive:
        files = {}
        for member in archive:
            file = archive.extractfile(member)
            assert file is not None
            files[member.name.partition("/")[2]] = file.read().decode()
        return files


def test_a_launch_is_bundled_and_replayed_to_the_providers_client(rented: RentedUser) -> None:
    rented.environment |= {"HF_TOKEN": TOKEN, "DB_PASSWORD": PASSWORD}
    plan_id = rented.plan_to_bind("--budget", "0.30", hard_stop_s=30.0, landing_s=6.0)
    launch = rented.start("launch", plan_id, "-y", *ACCEPT)
    run = rented.run_in(State.RUNNING)
    until(lambda: rented.only_run().trains, what="training")
    (pod,) = rented.live()
    rented.see_out(launch, code=20)
    rented.close_books()
    into = rented.folder / "told.tar.gz"
    told = rented.json("doctor", "--bundle", "--into", str(into), "--json")
    assert (told["run_id"], told["path"]) == (run.run_id, str(into))
    files = unpacked(into)
    assert list(files) == told["files"]
    for name, text in files.items():
        for secret in (rented.standin.api_key, TOKEN, PASSWORD, str(rented.home)):
            assert secret not in text, name
        assert "ssh-ed25519 AAAA" not in text
    assert all(name in files["README.txt"] for name in files if name != "README.txt")
    report = json.loads(files["report.json"])
    assert float(report["billed_usd"]) == pytest.approx(rented.billed(), abs=2e-6)
    kinds = [json.loads(line)["kind"] for line in files["records.jsonl"].splitlines()]
    assert kinds[0] == "RunPlanned"
    assert "Closed" in kinds

    exchanges = [json.loads(line) for line in files["exchanges.jsonl"].splitlines()]
    assert len(exchanges) == told["exchanges"]
    [create] = [each for each in exchanges if (each["method"], each["url"]) == ("POST", "/v2/pods")]
    assert create["status"] == 201
    assert create["answer"]["id"] == pod.id
    assert all(text.startswith("[removed") for text in create["request"]["env"].values())
    with replaying(exchanges) as replay:
        api = RunPodApi(Http("rpa_OF0NOBODY", sleep=lambda _: None), replay.url)
        made = api.create_pod({"name": "any"})
        assert (made.id, made.name) == (pod.id, pod.name)
        seen = [{each.id for each in api.pods()} for _ in exchanges]
        assert (seen[0], {pod.id} in seen, seen[-1]) == (set(), True, set())
        assert replay.unknown == []


def test_a_bundle_is_not_written_over_a_file_and_names_its_run(user: User) -> None:
    assert "there are no runs yet" in user.fails("doctor", "--bundle", code=3)
    user.run(*LAUNCH, "--steps", "20", "--budget", "1")
    run = user.only_run()
    path = user.folder / f"trmcloud-{run.run_id}.tar.gz"
    shown = user.run("doctor", "--bundle")
    assert f"{run.run_id}: written to trmcloud-{run.run_id}.tar.gz" in shown
    assert path.stat().st_mode & 0o777 == 0o600
    assert "already exists" in user.fails("doctor", "--bundle", code=8)
    assert "no run 'r-none'" in user.fails("doctor", "--bundle", "--run", "r-none", code=3)
    assert "--run and --into need --bundle" in user.fails("doctor", "--into", "x", code=2)
    assert str(user.home) not in "".join(unpacked(path).values())
