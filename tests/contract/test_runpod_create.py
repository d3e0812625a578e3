"""What a create holds: it fits RunPod's limit, and its command starts on the poorest of images."""

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
from tests.contract.runpod_rig import Rig, request
from tests.standins.runpod import commands, oracle
from tests.standins.runpod.client import Client, eventually
from tests.standins.runpod.fixture import judged
from tests.standins.runpod.machines import no_namespaces
from tests.standins.runpod.standin import StandIn
from tests.unit.pod.leases import a_lease, job_of
from trmcloud.app.staging.packing import POD_ENTRY
from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.errors import NotSupported
from trmcloud.core.money import Usd
from trmcloud.ports.compute import PodRequest
from trmcloud.providers.runpod.account import RunPodGraphql
from trmcloud.providers.runpod.api import RunPodApi
from trmcloud.providers.runpod.compute import RunPodCompute
from trmcloud.providers.runpod.create import (
    ENTRYPOINT,
    LIMIT_BODY_BYTES,
    MAX_BODY_BYTES,
    PREFIX,
    boot_command,
    boot_environment,
    boot_payload,
)
from trmcloud.providers.runpod.http import Http, compact

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


def test_a_create_that_is_too_large_is_not_sent(rig: Rig) -> None:
    """Not even a volume is made for it."""
    wanted = request(rig)
    rig.compute._requests._payload = lambda: bytes(76_800)
    with pytest.raises(NotSupported, match=r"is 99,\d{3} bytes; RunPod takes 102,400") as caught:
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
        path = f"/v2/pods/{answer.data['id']}"
        kept = ask("PATCH", path, {"entrypoint": ["new"]}).data
        assert (kept["entrypoint"], kept["cmd"]) == (["new"], shown[2])
        cleared = ask("PATCH", path, {"args": ""}).data
        assert (cleared["args"], cleared["entrypoint"], cleared["cmd"]) == ("", [], [])


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
    with judged(tmp_path / "runpod", isolated=True) as one:
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
    moved = [word.replace(PREFIX, str(folder / "opt")) for word in boot_command()]
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
