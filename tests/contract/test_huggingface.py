"""Hugging Face's adapter: what it asks for, reads back, refuses and survives."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.huggingface_rig import RATE, HubRig, another, hub_rig, job_request
from tests.contract.pod_requests import HOST_KEY
from tests.present import present
from tests.standins.huggingface.hub import TOKEN
from trmcloud.core.contract.pod_contract import ENV_HOST_KEY
from trmcloud.core.contract.trainer_contract import PhaseJob
from trmcloud.core.control.observation import BootTrouble, PodStatus
from trmcloud.core.errors import (
    AccessDenied,
    AmbiguousCreate,
    AuthError,
    FinalRefusal,
    NotSupported,
    UsageError,
)
from trmcloud.core.money import ZERO, Usd
from trmcloud.providers.huggingface import secrets, self_end
from trmcloud.providers.huggingface.api import JobsApi, read_job
from trmcloud.providers.huggingface.checkup import check_account
from trmcloud.providers.huggingface.compute import WAITS
from trmcloud.providers.huggingface.create import timeout_s
from trmcloud.providers.huggingface.http import Http
from trmcloud.providers.huggingface.offers import live_prices, offers_of, price_rows


@pytest.fixture
def rig() -> Iterator[HubRig]:
    with hub_rig() as made:
        yield made


# -- the create ---------------------------------------------------------


def test_a_job_has_the_hard_stop_as_its_time_out_and_no_default(rig: HubRig) -> None:
    job_id = rig.compute.create(job_request(rig))
    assert rig.hub.jobs[job_id].timeout_s == 3600
    assert timeout_s(rig.clock() - 5, rig.clock()) == 1, "never none: that is the default"


def test_the_own_ssh_key_is_a_secret_and_no_token_is_anywhere(rig: HubRig) -> None:
    job_id = rig.compute.create(job_request(rig))
    spec = rig.hub.jobs[job_id].spec
    assert list(spec["secrets"]) == [ENV_HOST_KEY]
    shown = rig.hub.told(rig.hub.jobs[job_id])
    assert HOST_KEY[:20] not in str(shown)
    assert TOKEN not in str(spec)
    assert not set(spec["environment"]) & set(secrets.TOKEN_VARIABLES)
    (create,) = [each for each in rig.standin.requests if each.method == "POST"]
    assert create.token == TOKEN, "it travels in the header alone"


@pytest.mark.parametrize(
    "given",
    [
        {"HF_TOKEN": "anything"},
        {"DATA_KEY": TOKEN},
        {"ADDRESS": f"https://u:{TOKEN}@example.com"},
        {"OTHER": "hf_" + "a1" * 17},
    ],
)
def test_a_token_that_a_job_would_have_is_refused(rig: HubRig, given: dict[str, str]) -> None:
    with pytest.raises(NotSupported, match="could start other jobs") as found:
        rig.compute.create(job_request(rig, given=given))
    assert TOKEN not in str(found.value)
    assert rig.asked("POST") == []


def test_a_token_in_the_settings_of_a_training_is_seen_through_base64(rig: HubRig) -> None:
    job = PhaseJob("r1", "fast", {"data": f"https://u:{TOKEN}@example.com"}, "/d", "/o", 1)
    with pytest.raises(NotSupported, match="phase fast has a Hugging Face token"):
        rig.compute.create(job_request(rig, jobs=(job,)))
    assert rig.asked("POST") == []


@pytest.mark.parametrize(("recorded", "said"), [(1800, "1800 s"), (None, "none")])
def test_a_time_out_that_the_api_ignores_cancels_the_job(
    rig: HubRig, recorded: int | None, said: str
) -> None:
    rig.hub.knobs.recorded_timeout = recorded
    with pytest.raises(FinalRefusal, match=f"a time-out of {said}, not the 3600 s asked for"):
        rig.compute.create(job_request(rig))
    (job,) = rig.hub.jobs.values()
    assert (job.stage, job.ended_by) == ("CANCELED", "api")


def test_a_job_with_another_time_out_that_cannot_be_cancelled_is_told(rig: HubRig) -> None:
    rig.hub.knobs.recorded_timeout, rig.hub.knobs.refuses_cancels = 1800, 9
    wanted = job_request(rig)
    with pytest.raises(AmbiguousCreate, match="could not be cancelled") as found:
        rig.compute.create(wanted)
    (job,) = rig.hub.live()
    assert found.value.next_step == f"hf jobs cancel {job.id}"
    (limit,) = rig.compute.own_limits(wanted.name)
    assert limit.armed, "its own end comes before the hard stop"


def test_a_job_whose_create_was_lost_is_held_to_its_time_out_too(rig: HubRig) -> None:
    rig.hub.knobs.loses_answers, rig.hub.knobs.recorded_timeout = 1, 1800
    wanted = job_request(rig)
    with pytest.raises(AmbiguousCreate):
        rig.compute.create(wanted)
    rig.on(5)
    with pytest.raises(FinalRefusal, match="a time-out of 1800 s"):
        rig.compute.create(wanted)
    assert rig.hub.live() == []


def test_a_short_429_is_waited_for_by_either_header(rig: HubRig) -> None:
    rig.hub.knobs.throttle_headers = {"RateLimit": '"api";r=0;t=25'}
    rig.hub.knobs.throttled_until = rig.clock() + 25
    assert rig.compute.create(job_request(rig)) in rig.hub.jobs


@pytest.mark.parametrize(("rate", "flavor"), [("1.50", "a10g-large"), ("1.20", "a10g-small")])
def test_of_two_flavors_the_rate_decides(rig: HubRig, rate: str, flavor: str) -> None:
    job_id = rig.compute.create(job_request(rig, "A10G", rate=Usd(rate)))
    assert rig.hub.jobs[job_id].spec["flavor"] == flavor


def test_what_no_job_has_is_refused(rig: HubRig) -> None:
    for more in ({"nodes": 2}, {"spot": True}, {"volume_gb": 100}, {"disk_gb": 5000}):
        with pytest.raises(NotSupported):
            rig.compute.create(job_request(rig, **more))
    with pytest.raises(NotSupported, match="no 1x B200"):
        rig.compute.create(job_request(rig, "B200"))
    assert rig.asked("POST") == []


# -- what is listed -----------------------------------------------------


def test_a_job_without_our_label_is_in_the_second_list_alone(rig: HubRig) -> None:
    wanted = job_request(rig)
    with rig.hub.lock:
        spec = {"command": ["x"], "dockerImage": "i", "labels": {"name": wanted.name}}
        made = rig.hub.start(spec)
        rig.hub.start({"command": ["x"], "dockerImage": "i", "labels": {"name": "daily"}})
    assert rig.compute.list_pods() == ()
    (pod,) = rig.compute.cross_listed()
    assert pod.pod_id == made.id


def test_a_job_that_stays_scheduling_is_being_created_and_costs_nothing(rig: HubRig) -> None:
    rig.hub.knobs.stays_scheduling = True
    job_id = rig.compute.create(job_request(rig))
    rig.on(10)
    assert rig.compute.boot_trouble(job_id) is None
    rig.on(12 * 3600)
    (pod,) = rig.compute.list_pods()
    assert rig.compute.boot_trouble(job_id) == BootTrouble(WAITS)
    rig.hub.jobs[job_id].message = "Waiting for an l4x1"
    rig.on(5)
    assert rig.compute.boot_trouble(job_id) == BootTrouble("Waiting for an l4x1")
    assert pod.status is PodStatus.CREATING
    assert rig.compute.address_of(pod.name) is None
    rig.compute.terminate(job_id)
    rig.on(5)
    (pod,) = rig.compute.list_pods()
    assert pod.gone
    assert pod.never_made
    assert pod.rate == ZERO
    bill = present(rig.compute.bill(job_id))
    assert (bill.amount, bill.final) == (ZERO, True)


def test_a_job_that_cannot_start_its_agent_says_so(rig: HubRig) -> None:
    job_id = rig.compute.create(job_request(rig))
    rig.on(10)
    rig.compute.list_pods()
    job = rig.hub.jobs[job_id]
    job.log.append((rig.clock(), "trmcloud: there is no python3 in this image"))
    rig.hub.exited(job, 1)
    rig.on(5)
    (pod,) = rig.compute.list_pods()
    assert pod.never_made == "there is no python3 in this image"
    assert pod.rate == Usd("0.79998"), "it ran, and was billed"


def test_the_end_of_a_job_that_has_ended_is_taken(rig: HubRig, tmp_path: Path) -> None:
    wanted = job_request(rig)
    job_id = rig.compute.create(wanted)
    rig.compute.terminate(wanted.name)
    assert rig.hub.jobs[job_id].stage == "CANCELED"
    other = another(rig.standin, rig.clock, tmp_path)
    assert other.compute.terminate(job_id) is True, "it has ended: that is proof"
    assert other.compute.terminate("6affff") is False


def test_the_time_out_ends_a_job_that_nothing_else_ends(rig: HubRig) -> None:
    wanted = job_request(rig)
    job_id = rig.compute.create(wanted)
    rig.on(10)
    (limit,) = rig.compute.own_limits(wanted.name)
    assert (limit.layer, limit.armed) == ("timeout", True)
    assert "3600 s, by its documentation; read back" in limit.detail
    rig.on(3610)
    (pod,) = rig.compute.list_pods()
    assert pod.gone
    assert pod.ended_at is not None
    bill = present(rig.compute.bill(job_id))
    assert bill.amount == Usd("0.79998"), "an hour, and no minute more"
    assert float(bill.amount) == pytest.approx(rig.hub.billed(rig.hub.jobs[job_id]))


def test_begun_minutes_are_billed_whole(rig: HubRig) -> None:
    job_id = rig.compute.create(job_request(rig))
    rig.on(5)
    rig.on(61)
    rig.compute.terminate(job_id)
    assert present(rig.compute.bill(job_id)).amount == Usd.from_micros(2 * 13_333)


def test_a_job_that_was_deleted_is_billed_by_what_was_seen_of_it(rig: HubRig) -> None:
    job_id = rig.compute.create(job_request(rig))
    rig.on(300)
    rig.compute.list_pods()
    del rig.hub.jobs[job_id]
    rig.on(5)
    assert rig.compute.list_pods() == ()
    bill = present(rig.compute.bill(job_id))
    assert bill.final
    assert bill.amount >= Usd.from_micros(5 * 13_333)


# -- the way to a job ---------------------------------------------------


def test_ssh_goes_through_the_gateway_to_the_jobs_own_server(rig: HubRig) -> None:
    wanted = job_request(rig)
    job_id = rig.compute.create(wanted)
    assert rig.compute.address_of(wanted.name) is None
    rig.on(10)
    assert rig.compute.address_of(wanted.name) == ("127.0.0.1", 10022)
    way = rig.compute.way_to(wanted.name)
    assert way.endswith(f" -p 22 -W %h:%p {job_id}@ssh.hf.jobs")
    spec = rig.hub.jobs[job_id].spec
    assert spec["environment"]["TRMCLOUD_SSH_LISTEN"] == "127.0.0.1"


@pytest.mark.parametrize(
    "url", ["ssh://-oProxyCommand=x@ssh.hf.jobs", "ssh://job@-x", "https://job@h", "ssh://job@h:x"]
)
def test_an_address_that_ssh_would_misread_is_none(url: str) -> None:
    job = read_job({"id": "6a1", "status": {"stage": "RUNNING", "sshUrl": url}}, "here")
    assert job.ssh is None


def test_a_job_ends_itself_by_its_exit_without_a_credential() -> None:
    ((name, _),) = self_end.ways({}, None)
    assert name == "exit"


# -- the account, and prices --------------------------------------------


def test_a_wrong_token_and_another_namespace_are_told_apart(rig: HubRig) -> None:
    wrong = JobsApi(Http(rig.standin.url, "hf_wrong", now=rig.clock, sleep=rig.clock.advance))
    with pytest.raises(AuthError, match="does not know this token"):
        wrong.jobs()
    right = Http(rig.standin.url, TOKEN, now=rig.clock, sleep=rig.clock.advance)
    with pytest.raises(AccessDenied):
        JobsApi(right, "another").jobs()


def test_offers_are_the_hardware_list_without_what_is_not_planned_for(rig: HubRig) -> None:
    found = {offer.instance: offer for offer in offers_of(rig.api.hardware(), 5.0)}
    assert {"a100x8", "h200", "l4x1", "a10g-small", "a10g-large"} <= set(found)
    assert not {"cpu-basic", "t4-small", "rtx-pro-6000"} & set(found)
    offer = found["a100x8"]
    assert (offer.sku, offer.gpus, offer.rate) == ("A100-80GB-SXM", 8, Usd("19.99998"))
    assert (offer.vcpus, offer.ram_gb, offer.priced_at) == (96, 1136.0, 5.0)


def test_prices_are_read_without_a_token_and_fail_within_seconds(rig: HubRig) -> None:
    environ = {"HF_ENDPOINT": rig.standin.url}
    offers, failure = live_prices(environ, 5.0)
    assert (len(offers), failure) == (11, "")
    rows, notes = price_rows(environ, 5.0)
    assert len(rows) == 11
    assert notes == ["huggingface: 11 offers of 1970-01-01"]
    assert {each.token for each in rig.standin.requests} == {""}
    rig.hub.knobs.throttled_until = rig.clock() + 60
    assert live_prices(environ, 5.0)[0] == []


def test_a_hub_that_is_neither_https_nor_here_gets_no_token() -> None:
    with pytest.raises(UsageError, match="without encryption"):
        secrets.endpoint({"HF_ENDPOINT": "http://example.com"})


def test_the_token_is_found_where_the_hub_client_keeps_it(tmp_path: Path) -> None:
    assert secrets.account_token({"HOME": str(tmp_path)}) is None
    kept = tmp_path / ".cache" / "huggingface" / "token"
    kept.parent.mkdir(parents=True)
    kept.write_text("hf_kept\n")
    assert secrets.account_token({"HOME": str(tmp_path)}) == "hf_kept"
    assert secrets.account_token({"HOME": str(tmp_path), "HF_TOKEN": "hf_set"}) == "hf_set"
    both = {"HF_TOKEN": "hf_data", "TRMCLOUD_HF_TOKEN": "hf_jobs"}
    assert secrets.account_token(both) == "hf_jobs"


def test_the_planned_rate_is_what_the_list_says(rig: HubRig) -> None:
    rig.compute.create(job_request(rig))
    rig.on(5)
    (pod,) = rig.compute.list_pods()
    assert pod.rate == Usd("0.79998") < RATE


def test_doctor_asks_nothing_of_an_account_that_is_not_rented_from(rig: HubRig) -> None:
    environ = rig.standin.environment
    assert check_account(environ, needed=False) == []
    assert rig.standin.requests == []
    states = [found.state for found in check_account(environ, needed=True)]
    assert states == ["ok", "ok"]
    (found,) = check_account(environ | {"HF_TOKEN": "hf_wrong"}, needed=True)
    assert found.state == "bad"
    (found,) = check_account({"HOME": "/nowhere"}, needed=True)
    assert found.state == "warn"
