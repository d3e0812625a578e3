"""Creates and whole launches at RunPod: what a create holds, and who waits after a refusal."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests import pythons
from tests.contract import runpod_largest as largest
from tests.contract.pod_requests import request
from tests.contract.runpod_rig import Rig
from tests.present import present
from tests.standins.runpod import commands, oracle
from tests.standins.runpod.client import Client, eventually
from tests.standins.runpod.fixture import judged
from tests.standins.runpod.machines import no_namespaces
from tests.standins.runpod.standin import StandIn
from tests.unit.pod.leases import a_lease, job_of
from trmcloud.adapters.ledger.sqlite import SqliteLedger
from trmcloud.core.catalog.providers import traits_of
from trmcloud.core.clock import Instant
from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.control import events as ev
from trmcloud.core.control.report import spent_so_far
from trmcloud.core.control.run_state import RunState, State
from trmcloud.core.errors import (
    FinalRefusal,
    LinkError,
    NotSupported,
    Outcome,
    PaymentRequired,
    ProviderError,
)
from trmcloud.core.money import ZERO, Usd
from trmcloud.core.spec.plan import Plan
from trmcloud.operations.context import Buckets, Caller, Context
from trmcloud.operations.driving.drive import RunDriver
from trmcloud.operations.launch import launching
from trmcloud.operations.launch.run_notes import HomeNotes
from trmcloud.operations.launch.short_rentals import make_smoke_plan
from trmcloud.operations.machines import Machines
from trmcloud.operations.pod_request import LaunchData
from trmcloud.operations.reasons import sentence
from trmcloud.operations.sending.packing import POD_ENTRY, POD_PREFIX
from trmcloud.ports.compute import PodRequest
from trmcloud.ports.ledger import ControllerId
from trmcloud.providers.runpod.account import RunPodGraphql
from trmcloud.providers.runpod.api import RunPodApi
from trmcloud.providers.runpod.compute import RunPodCompute
from trmcloud.providers.runpod.create import (
    ENTRYPOINT,
    LIMIT_BODY_BYTES,
    MAX_BODY_BYTES,
    boot_command,
    boot_environment,
    boot_payload,
)
from trmcloud.providers.runpod.http import Http, compact
from trmcloud.providers.runpod.offers import live_offers
from trmcloud.sim.world.clocks import KeptIntents
from trmcloud.sim.world.store import SimFiles

# -- runpod create ------------------------------------------------------------------------------
# What a create holds: it fits RunPod's limit, and its command starts on the poorest of images.


WHY_NOT = no_namespaces()
isolated_only = pytest.mark.skipif(bool(WHY_NOT), reason=f"pods: {WHY_NOT}")
LEAST_ROOM_BYTES = 7_000
"""Where less is left, it is time for what docs/decisions/0015 names, before agents have grown."""
POOR = (
    "bash",
    "xz",
    "gzip",
    "bzip2",
    "tar",
    "base64",
    "curl",
    "wget",
    "pip",
    "pip3",
    "perl",
    "env",
)


# -- its size -------------------------------------------------------------------------------------


def test_the_largest_create_fits_with_room_to_grow() -> None:
    bodies = list(largest.bodies())
    assert {len(json.loads(_told(body, contract.ENV_JOBS))) for body in bodies} == {1, 2}
    size = max(len(compact(body)) for body in bodies)
    assert size <= MAX_BODY_BYTES - LEAST_ROOM_BYTES, f"{size:,} bytes"
    made = max(map(commands.deployment_bytes, bodies))
    assert made <= LIMIT_BODY_BYTES - LEAST_ROOM_BYTES, f"{made:,} bytes"


def test_the_largest_create_is_what_the_contract_takes() -> None:
    judge = oracle.required()
    for body in largest.bodies():
        assert judge.valid("CreatePodRequest", body) == []


def test_what_is_sent_is_as_long_as_what_was_checked(rig: Rig) -> None:
    wanted = request(rig)
    rig.compute.create(wanted)
    sent = next(one for one in rig.standin.requests if one.method == "POST")
    assert sent.bytes == len(compact(rig.compute.body(wanted)))


def test_a_container_starts_as_root_whatever_its_image_says() -> None:
    """Another user could not open port 22."""
    assert {body["env"]["RUNPOD_POD_USER"] for body in largest.bodies()} == {"0"}


def test_a_create_that_is_too_large_is_not_sent(rig: Rig) -> None:
    """Not even a volume is made for it."""
    wanted = request(rig)
    rig.compute._payload = lambda: bytes(76_800)
    with pytest.raises(NotSupported, match=r"has 99,\d{3} bytes; RunPod takes 102,400") as caught:
        rig.compute.create(replace(wanted, volume_gb=10, region="US-KS-2"))
    assert "\n" not in str(caught.value)
    assert rig.standin.requests == []


def test_the_stand_in_answers_413_before_it_looks_at_the_key(runpod_on_paper: StandIn) -> None:
    body = {"name": "a", "image": "i", "gpu": {"id": "NVIDIA L4"}, "env": {"A": "x" * 102_400}}
    stranger = Client(runpod_on_paper, key="rpa_wrong")
    assert stranger("POST", "/v2/pods", body).status == 413
    small = body | {"env": {"A": "x" * 80_000}}
    assert stranger("POST", "/v2/pods", small).status == 401
    ask = Client(runpod_on_paper)
    assert ask("POST", "/v2/pods", small).status == 201
    # What is made of it is longer than what was sent.
    quotes = body | {"env": {}, "cmd": ['"' * 40_000]}
    assert len(json.dumps(quotes)) < LIMIT_BODY_BYTES
    assert ask("POST", "/v2/pods", quotes).status == 413


# -- its command ----------------------------------------------------------------------------------


def test_the_command_replaces_the_images_entry_point(rig: Rig) -> None:
    body = rig.compute.body(request(rig))
    assert "args" not in body
    assert (body["entrypoint"], body["cmd"]) == (list(ENTRYPOINT), boot_command())
    rig.compute.create(request(rig))
    (shown,) = Client(rig.standin)("GET", "/v2/pods").data["pods"]
    assert (shown["entrypoint"], shown["cmd"]) == (body["entrypoint"], body["cmd"])
    assert json.loads(shown["args"]) == {"entrypoint": shown["entrypoint"], "cmd": shown["cmd"]}


@pytest.mark.parametrize(
    ("body", "status", "shown"),
    [
        ({"args": "sleep '6 0'"}, 201, ("sleep '6 0'", [], ["sleep", "6 0"])),
        ({"args": "it's"}, 201, ("it's", [], ["it's"])),
        ({"args": '{"cmd":["a"]}'}, 201, ('{"cmd":["a"]}', [], ["a"])),
        ({"cmd": ["a", "b c"]}, 201, ('{"cmd":["a","b c"]}', [], ["a", "b c"])),
        ({"entrypoint": ["e"]}, 201, ('{"entrypoint":["e"]}', ["e"], [])),
        ({"args": "a b", "cmd": ["a", "b"]}, 201, ("a b", [], ["a", "b"])),
        ({"args": "a b", "cmd": ["a b"]}, 400, None),
        ({"args": "a", "entrypoint": ["a"]}, 400, None),
        ({"cmd": "a"}, 422, None),
        ({"cmd": [1]}, 422, None),
        ({}, 201, ("", [], [])),
    ],
)
def test_a_command_has_three_forms(
    runpod_on_paper: StandIn, body: dict[str, Any], status: int, shown: Any
) -> None:
    ask = Client(runpod_on_paper)
    base = {"name": "a", "image": "i", "gpu": {"id": "NVIDIA L4"}}
    answer = ask("POST", "/v2/pods", base | body)
    assert answer.status == status, answer.text
    if shown is not None:
        assert (answer.data["args"], answer.data["entrypoint"], answer.data["cmd"]) == shown


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (commands.Command(), ("image", "start.sh")),
        (commands.Command(cmd=("a",)), ("image", "a")),
        (commands.Command(("sh", "-c"), ("a",)), ("sh", "-c", "a")),
        (commands.Command(("sh",)), ("sh",)),
    ],
)
def test_an_images_entry_point_takes_a_command_for_its_arguments(
    command: commands.Command, words: tuple[str, ...]
) -> None:
    assert command.words(["image"]) == words


# -- on poor images -------------------------------------------------------------------------------


@pytest.fixture
def standin(tmp_path: Path) -> Iterator[StandIn]:
    with judged(tmp_path / "runpod") as one:
        one.control.set(restart_after_s=0.05, runpodctl="absent")
        yield one


def rent(standin: StandIn, payload: Callable[[], bytes] = boot_payload) -> str:
    """Rent a pod whose agent has an hour; returns its name."""
    lease = a_lease(time.time(), 3600.0)
    http = Http(standin.api_key)
    compute = RunPodCompute(
        RunPodApi(http, standin.url),
        RunPodGraphql(http, f"{standin.url}/graphql"),
        lambda pod: largest.KEYS,
        payload,
        environment={contract.ENV_LINGER_S: "0"},
    )
    made = PodRequest(
        name=lease.pod_name, sku="L4", gpus=1, rate=Usd("0.43"), lease=lease,
        jobs=(job_of(lease, Path(contract.POD_ROOT)),), check={"gpu": "NVIDIA L4", "count": 1},
    )  # fmt: skip
    compute.create(made)
    return made.name


def said(standin: StandIn, name: str) -> list[str]:
    """What the pod's first process printed."""
    return [
        line for *_, source, line in list(standin.control.pod(name).log) if source == "container"
    ]


@isolated_only
def test_an_image_with_nothing_but_sh_and_python_boots(standin: StandIn, tmp_path: Path) -> None:
    """Its own entry point, which would end the container, is not asked."""
    standin.control.set(absent_commands=list(POOR), image_entrypoint=["false"])
    name = rent(standin)
    report = eventually(lambda: next(iter(tmp_path.rglob(f"{name}/{contract.REPORT_NAME}")), None))
    assert contract.load_report(report.read_text()).pod_name == name
    assert standin.control.pod(name).boots == 1


@isolated_only
def test_without_an_entry_point_of_ours_the_image_would_have_ended_it(standin: StandIn) -> None:
    standin.control.set(image_entrypoint=["false"])
    Client(standin).rent(cmd=["sleep", "600"])
    eventually(lambda: standin.control.pod("a-pod").boots >= 3)


@isolated_only
@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl here")
def test_an_image_without_python_says_so_and_ends_its_pod(standin: StandIn) -> None:
    absent = [path.name for path in Path("/usr/bin").glob("python3*")]
    standin.control.set(absent_commands=absent)
    name = rent(standin)
    eventually(lambda: not standin.control.live())
    assert standin.control.pod(name).ended_by == "self"
    eventually(lambda: len(said(standin, name)) >= 2)  # what it printed last is read after its end
    first, second, *_ = said(standin, name)  # its own end may come in the midst of asking for it
    assert first == "trmcloud: there is no python3 in this image: the agent cannot be started"
    assert second == "trmcloud: this pod asks for its own end in 0 s"


@isolated_only
def test_sources_that_cannot_be_unpacked_end_the_pod(standin: StandIn) -> None:
    standin.control.set(absent_commands=list(POOR))
    name = rent(standin, lambda: boot_payload()[:-2000])
    eventually(lambda: not standin.control.live())
    assert standin.control.pod(name).ended_by == "self"
    eventually(lambda: len(said(standin, name)) >= 2)
    first, second, *_ = said(standin, name)
    assert first.startswith("trmcloud: the agent cannot be started on this image: EOFError: ")
    assert second == "trmcloud: this pod asks for its own end in 0 s"


@isolated_only
def test_a_pod_that_can_neither_start_nor_end_stays_one_container(standin: StandIn) -> None:
    standin.control.set(self_action=False)
    name = rent(standin, lambda: b"no archive")
    path = f"/v2/pods/{standin.control.pod(name).id}/action"
    eventually(lambda: [r for r in standin.requests if (r.path, r.status) == (path, 403)])
    assert standin.control.pod(name).boots == 1, "started again, it would be asked for anew"
    assert len(standin.control.live()) == 1


def run_with(python: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """The command where ``python`` is all that an image has beside /bin/sh, unpacking below
    ``folder``; without ``sleep`` it ends where it would stay."""
    tools = folder / "bin"
    tools.mkdir(parents=True)
    (tools / "python3").symlink_to(python)
    moved = [word.replace(POD_PREFIX, str(folder / "opt")) for word in boot_command()]
    environment = {"PATH": str(tools), **boot_environment(boot_payload())}
    return subprocess.run(
        [*ENTRYPOINT, *moved], env=environment, capture_output=True, text=True, timeout=60
    )


def old_pythons() -> dict[str, Path]:
    """By version, those of this machine that are too old."""
    return {
        f"{major}.{minor}": path
        for (major, minor), path in pythons.found((3, 6)).items()
        if (major, minor) < pythons.OLDEST_ON_A_POD
    }


def test_an_old_python_is_told_by_its_number(tmp_path: Path) -> None:
    if not (too_old := old_pythons()):
        pytest.skip("no Python older than 3.10 here")
    for version, python in too_old.items():
        done = run_with(python, tmp_path / version)
        assert done.stderr.splitlines()[0] == (
            f"trmcloud: this image's python3 is {version}; a pod needs 3.10"
        )


def test_a_python_without_xz_and_bzip2_will_do(tmp_path: Path) -> None:
    """As where it was compiled on a machine that lacked them; only its zlib is used."""
    lacking = tmp_path / "lacking"
    lacking.mkdir()
    for module in ("lzma", "_lzma", "bz2", "_bz2"):
        (lacking / f"{module}.py").write_text("raise ImportError('not compiled in')\n")
    # It is asked to import the agent, which it does, and then to become it, which it is not let.
    python = tmp_path / "python3"
    python.write_text(
        '#!/bin/sh\n[ "$1" = -m ] && echo "becomes $2" && exit\n'
        f'PYTHONPATH={lacking} exec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    done = run_with(python, tmp_path / "image")
    assert (done.stdout, done.stderr) == (f"becomes {POD_ENTRY}\n", "")


def _told(body: dict[str, Any], name: str) -> str:
    return base64.b64decode(body["env"][name]).decode()


# -- where it landed, and when it is up ---------------------------------------------------------


def test_running_is_an_address_and_not_a_word(rig: Rig) -> None:
    rig.standin.control.set(says_running=True, provisioning_s=10, starting_s=5, ssh_after_s=10)
    wanted = request(rig)
    pod_id = rig.compute.create(wanted)
    assert present(rig.api.pod(pod_id)).status == "RUNNING"
    for _ in range(4):
        rig.on(5)
        assert [pod.status for pod in rig.compute.list_pods()] == ["creating"]
        assert rig.compute.address_of(wanted.name) is None
    rig.on(6)
    assert [pod.status for pod in rig.compute.list_pods()] == ["running"]
    assert rig.compute.address_of(wanted.name) is not None


# -- runpod launches ----------------------------------------------------------------------------
# Whole runs through RunPod's adapter, ledger and controller, on a clock that waiting moves: what
# becomes of them where RunPod refuses, misleads, or puts a pod where nobody asked for it.


class _Clock:
    def __init__(self, rig: Rig) -> None:
        self._rig = rig

    def now(self) -> Instant:
        return Instant(self._rig.clock(), self._rig.clock())

    def sleep(self, seconds: float) -> None:
        self._rig.on(seconds)


class _Silent:
    """A pod that never says a word."""

    def report(self, pod_name: str) -> None:
        return None

    def trouble(self, pod_name: str) -> None:
        return None

    def left_behind(self, pod_name: str, earlier: str) -> None:
        return None

    def send_orders(self, pod_name: str, orders: Any) -> None:
        raise LinkError("nobody there")


class _Idle:
    def running(self) -> frozenset[str]:
        return frozenset()

    def finished(self) -> tuple[()]:
        return ()

    def cancel(self) -> None:
        pass


class Launch:
    """One launch with every cheap machine as a candidate, driven by hand."""

    def __init__(self, rig: Rig, folder: Path) -> None:
        self.rig = rig
        unused: Any = None
        links: Any = {"runpod": _Silent()}
        self.world = Context(
            home=folder, clock=_Clock(rig), ledger=SqliteLedger(folder / "ledger.db"),
            intents=KeptIntents(), files=SimFiles(), notes=HomeNotes(folder), workers=_Idle(),  # type: ignore[arg-type]
            machines=Machines({"runpod": rig.compute}, links), buckets=Buckets(),
            caller=Caller(ControllerId("here", 1, "boot"), lambda who: True), pods=unused,
        )  # fmt: skip
        self._driver: RunDriver | None = None

    def plan(self, *regions: str) -> Plan:
        now = self.rig.clock()
        offers = [
            offer
            for offer in live_offers(self.rig.api.catalogue, now, (1,))
            if offer.sku in ("L4", "L40S", "RTX4090") and offer.region in (regions or ("US-KS-2",))
        ]
        return make_smoke_plan(offers, traits_of("runpod"), Usd(2), 1800.0, Usd("0.01"), now)

    def start(self, plan: Plan) -> RunDriver:
        self._driver = launching.start(self.world, plan, data=LaunchData())
        self.rig.standin.requests.clear()
        return self._driver

    def until(self, done: Callable[[RunState], bool], within_s: float = 3600.0) -> RunState:
        assert self._driver is not None
        began_at = self.rig.clock()
        while True:
            run = self._driver.step()
            if done(run) or not run.live:
                return run
            assert self.rig.clock() - began_at < within_s, run
            self.rig.on(1.0)

    def to_the_end(self) -> RunState:
        run = self.until(lambda run: False)
        assert self.rig.standin.control.live() == [], "nothing is left running"
        return run

    def created(self) -> int:
        return self.rig.asked("POST").count("POST /v2/pods")


@pytest.fixture
def made(rig: Rig, tmp_path: Path) -> Launch:
    """Its pods have no log: one that says no more is read for seconds of real time."""
    rig.standin.control.set(logs_status=404)
    return Launch(rig, tmp_path / "home")


def nothing_rented(made: Launch, run: RunState, says: str) -> None:
    assert (run.state, run.outcome) == (State.CLOSED, Outcome.NOT_STARTED)
    assert says in sentence(run.reason)
    assert "\n" not in sentence(run.reason)
    assert len(sentence(run.reason)) < 400
    assert spent_so_far(run, made.rig.clock()) == run.reserved == ZERO


# -- before anything is reserved -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("knobs", "error", "says"),
    [
        ({"list_circle": True}, ProviderError, "pages repeat"),
        ({"list_lacks_pods": 99}, ProviderError, "pods: Field required"),
        ({"v2_gone": True}, FinalRefusal, "no longer exists"),
    ],
)
def test_a_list_that_is_none_stops_a_launch_before_it_costs(
    made: Launch, knobs: dict[str, Any], error: type[ProviderError], says: str
) -> None:
    plan = made.plan()
    made.rig.standin.control.set(**knobs)
    with pytest.raises(error, match=says) as caught:
        made.start(plan)
    assert caught.value.next_step
    assert made.world.ledger.read().runs == {}
    made.rig.standin.control.reset()
    assert made.rig.standin.control.live() == []


# -- who goes on and who stops ------------------------------------------------------------------


def test_a_403_on_the_first_of_three_leads_to_the_second(made: Launch) -> None:
    plan = made.plan()
    assert len(plan.launchable) == 3
    made.rig.standin.control.set(forbidden_gpus=["NVIDIA L4"])
    made.start(plan)
    run = made.until(lambda run: run.state is State.BOOTING)
    assert "cannot access the requested pool" in sentence(run.generations[0].not_made)
    (pod,) = made.rig.standin.control.live()
    assert pod.gpu_id != "NVIDIA L4"
    assert made.created() == 2


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (402, "add credit"),
        (410, "no longer exists"),
        (413, "the request is too large for RunPod"),
        (422, "contract was broken"),
    ],
)
def test_what_no_candidate_mends_is_asked_once(made: Launch, code: int, says: str) -> None:
    plan = made.plan()
    made.rig.standin.control.set(create_refused=code)
    made.start(plan)
    nothing_rented(made, made.to_the_end(), says)
    assert made.created() == 1


def test_a_refusal_of_every_candidate_is_told_in_the_last_ones_words(made: Launch) -> None:
    plan = made.plan()
    made.rig.standin.control.set(create_refused=400)
    made.start(plan)
    nothing_rented(made, made.to_the_end(), "refused by a knob")
    assert made.created() == 3


def test_an_outage_before_the_create_is_no_riddle(made: Launch) -> None:
    """Nothing was asked for, so nobody waits ten minutes for a pod that may come."""
    made.start(made.plan())
    made.rig.standin.control.set(errors_502=40)
    began_at = made.rig.clock()
    run = made.until(lambda run: run.state is State.BOOTING)
    assert made.rig.clock() - began_at < 180.0
    assert len(run.generations) == 2
    assert len(made.rig.standin.control.live()) == 1


def test_a_balance_that_went_in_between(made: Launch) -> None:
    plan = made.plan()
    made.start(plan)
    made.rig.standin.control.set_balance(0.01)
    nothing_rented(made, made.to_the_end(), "balance is too low")
    with pytest.raises(PaymentRequired):
        made.start(plan)


# -- where it landed, and whether it is up ---------------------------------------------------------


def test_a_pod_that_landed_elsewhere_is_ended_and_the_next_is_tried(made: Launch) -> None:
    made.rig.standin.control.set(lands_in="EUR-IS-1")
    plan = made.plan("US-KS-2", "EU-RO-1")
    made.start(plan)
    first = made.until(lambda run: run.state is State.BOOTING)
    assert first.generation is not None
    astray = first.generation.pod_name
    made.rig.standin.control.set(lands_in="")
    made.until(lambda run: len(run.generations) > 1 and run.state is State.BOOTING)
    assert made.rig.standin.control.pod(astray).ended_by == "api"
    (reason,) = {
        sentence(event.reason)
        for event in (record.event for record in made.world.ledger.records(first.run_id))
        if isinstance(event, ev.ActionFinished) and event.verb == "terminate" and event.reason
    }
    asked_for = plan.candidate(plan.launchable[0]).region
    assert reason == f"it is in EUR-IS-1, but {asked_for} was requested"
    (pod,) = made.rig.standin.control.live()
    assert pod.data_center != "EUR-IS-1"


def test_a_list_that_goes_bad_in_mid_run_ends_no_pod_and_loses_none(made: Launch) -> None:
    made.start(made.plan())
    run = made.until(lambda run: run.state is State.BOOTING)
    assert run.generation is not None
    for knobs in ({"list_endless": True}, {"list_lacks_pods": 9999}, {"html": 9999}):
        made.rig.standin.control.set(**knobs)
        for _ in range(20):
            made.rig.on(5.0)
            run = made.until(lambda run: True)
        made.rig.standin.control.reset(*knobs)
    assert (run.state, len(run.generations)) == (State.BOOTING, 1)
    assert len(made.rig.standin.control.live()) == 1
