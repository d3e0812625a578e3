"""A pod that is lost at one provider, or dearer there, and the run that continues at another: two
stand-ins, whose pods are machines of their own, and a bucket that both reach."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.rented import image, path_of, skip_without_pods
from tests.e2e.runpod_user import ACCEPT, LAUNCH, RentedUser, TestClock
from tests.e2e.user import until
from tests.standins.runpod.fixture import judged
from tests.standins.vast import standin as vast_standin
from trmcloud.adapters.ledger.sqlite import SqliteLedger
from trmcloud.core.control import events as ev
from trmcloud.core.control.reason import ReasonKind
from trmcloud.core.control.run_state import State
from trmcloud.core.errors import Outcome

pytest.importorskip("boto3")
pytest.importorskip("moto")

from tests.e2e.test_bucket import stored_steps
from tests.standins.s3 import BUCKET, S3


class TwoAccounts(RentedUser):
    """A user of RunPod and of vast.ai."""

    vast: vast_standin.StandIn

    def live(self) -> list[Any]:
        return [*super().live(), *self.vast.live()]

    def standin_pods(self) -> list[Any]:
        return super().live()

    def moving(self) -> Any:
        """The move that is under way, once its machine is up."""
        runs = list(self.ledger().runs.values())
        move = runs[0].move if runs else None
        return move if move is not None and move.state is State.RUNNING else None

    def lose(self) -> str:
        """The provider ends the only pod, whatever is on it; that provider's name."""
        (pod,) = self.live()
        if pod in self.vast.live():
            with self.vast.world.lock:
                self.vast.world.destroy(pod, "host")
                self.vast.world.hosts.clear()  # the others are rented by now
            return "vast"
        self.standin.control.end(pod.id)
        return "runpod"


@contextmanager
def renting_from_both(folder: Path, s3: S3, variables: dict[str, str]) -> Iterator[TwoAccounts]:
    skip_without_pods()
    inside = image(folder / "image")
    variables |= path_of(inside)
    clock = TestClock(folder / "clock")
    how: dict[str, Any] = {"clock": clock, "keep": [inside], "image_env": variables}
    with (
        judged(folder / "runpod", reach=[s3.port], **how) as runpod,
        vast_standin.running(folder / "vast", reach=[s3.port], **how) as vast,
    ):
        made = TwoAccounts(folder, standin=runpod, clock=clock)
        made.vast = vast
        made.environment |= vast.environment | s3.environment
        made.environment["TRMCLOUD_VAST_IMAGE"] = "an/image:with-this-machines-torch"
        yield made
        made.end_everything()


@pytest.mark.more
def test_a_run_whose_pod_is_lost_continues_at_the_other_provider(tmp_path: Path, s3: S3) -> None:
    variables = {"TRMCLOUD_STANDIN_FAULT": "hang@60"}
    with renting_from_both(tmp_path, s3, variables) as renter:
        prefix = tmp_path.name.replace("_", "-")
        launch = renter.start(
            *LAUNCH, "--steps", "150", "--budget", "1", *renter.data, *ACCEPT,
            "--provider", "runpod", "--provider", "vast", "--bucket", f"s3://{BUCKET}/{prefix}",
        )  # fmt: skip
        until(lambda: stored_steps(s3, prefix) == {45}, within_s=120, what="its first is stored")
        variables["TRMCLOUD_STANDIN_FAULT"] = "hang@30"  # where one that begins anew comes by
        first = renter.lose()
        out, _ = renter.see_out(launch)
        run = renter.only_run()
        assert run.outcome is Outcome.FINISHED
        had = [g.provider for g in run.generations if g.not_made is None]
        assert had == [first, *{"runpod", "vast"} - {first}]
        assert run.phases["fast"].step == 150
        said = f"the machine at {first} was lost; training continues from the bucket"
        assert f"generation 1: {said}" in out
        records = SqliteLedger(renter.ledger_path).records(run.run_id)
        revised = [each.event for each in records if isinstance(each.event, ev.PlanRevised)]
        assert [each.reason.kind for each in revised] == [ReasonKind.MACHINE_LOST]
        assert run.settled <= run.cap


@pytest.mark.more
def test_a_run_moves_to_the_cheaper_provider_while_its_machine_works(
    tmp_path: Path, s3: S3
) -> None:
    with renting_from_both(tmp_path, s3, {}) as renter:
        prefix = tmp_path.name.replace("_", "-")
        shown = renter.run(
            "plan", "--hardware", "1xRTX4090", "--recipe", "trm-tiny", "--phase", "fast",
            "--steps", "3000000", "--budget", "14",
            "--set", "save_every=200", "--set", "eval_every=200",
            "--provider", "runpod", "--provider", "vast", "--move-if", "20%",
            "--bucket", f"s3://{BUCKET}/{prefix}", *renter.data,
        )  # fmt: skip
        assert "moves: if this saves 20% of the remaining cost" in shown
        (plan_id,) = re.findall(r"launch (p-\w+)", shown)
        with renter.vast.world.lock:
            rented_out = list(renter.vast.world.hosts)
            renter.vast.world.hosts.clear()
        launch = renter.start("launch", plan_id, "-y", *renter.data, *ACCEPT)
        until(lambda: bool(renter.standin_pods()), within_s=60, what="the dearer one is rented")
        with renter.vast.world.lock:
            renter.vast.world.hosts.extend(rented_out)
        until(lambda: renter.moving() is not None, within_s=180, what="another one stands by")
        (row,) = renter.json("status", renter.only_run().run_id, "--json")["runs"]
        told = row["moving"]
        number = told["generation"]
        assert told["provider"] == "vast"
        assert float(told["saves_usd"]) >= 0.2 * float(told["stays_usd"])
        until(lambda: bool(renter.only_run().moves), within_s=240, what="it has moved")
        run = renter.only_run()
        landed = next(a.step for a in run.phase_accounts if a.generation == number - 1) or 0
        assert landed > 0
        until(
            lambda: max(stored_steps(s3, prefix), default=0) > landed + 200,
            within_s=180, what="the next machine trains from where the first has landed",
        )  # fmt: skip
        stop = renter.start("stop", "-y", run.run_id)
        out, _ = renter.see_out(launch, code=Outcome.STOPPED.exit_code)
        stop.communicate(timeout=60)
        run = renter.only_run()
        had = [g.provider for g in run.generations if g.not_made is None]
        assert had == ["runpod", "vast"]
        assert run.outcome is Outcome.STOPPED
        assert "training moved here, to vast" in out
        assert f"moved to generation {number} at vast" in renter.run("report", run.run_id)
        assert run.settled <= run.cap
