"""What `sky` prints, taken apart; a launch that found nothing to rent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.present import present
from tests.unit.skypilot.rig import NAME, NOW, Rig, request
from tests.unit.skypilot.said import SaidSky
from trmcloud.core.control.observation import Bill, PodSeen
from trmcloud.core.errors import AuthError, NoCapacity, ProviderError, ProviderRefused
from trmcloud.core.money import ZERO, cost
from trmcloud.core.storage import price_per_hour
from trmcloud.providers.skypilot.command import Sky, find_sky, reasons_in, why_untested

# -- command ------------------------------------------------------------------------------------
# What ``sky`` prints, taken apart: its version, its JSON, its reasons, its advice. The texts are
# those of SkyPilot 0.14.1, whose own command ``tests/contract/test_skypilot_real.py`` runs where
# it is installed.


def program(folder: Path, script: str) -> Sky:
    """A command that is this shell script."""
    path = folder / "sky"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return Sky(
        str(path), {"PATH": "/usr/bin:/bin", "PYTHONPATH": "/ours", "MINE": "1"}, folder / "empty"
    )


# -- the command -------------------------------------------------------------------------------


def test_it_is_found_by_its_name_or_by_ours(tmp_path: Path) -> None:
    program(tmp_path, "exit 0")
    own = str(tmp_path / "sky")
    assert find_sky({"PATH": str(tmp_path)}) == own
    assert find_sky({"TRMCLOUD_SKY": f" {own} ", "PATH": "/usr/bin"}) == own
    with pytest.raises(ProviderRefused, match=r"there is no sky$"):
        find_sky({"PATH": "/nowhere", "TRMCLOUD_SKY": " "})
    with pytest.raises(ProviderRefused, match="there is no /not/here"):
        find_sky({"PATH": str(tmp_path), "TRMCLOUD_SKY": "/not/here"})


def test_it_runs_without_our_packages_and_reports_nothing_unasked(tmp_path: Path) -> None:
    sky = program(tmp_path, 'echo "$PYTHONPATH|$MINE|$SKYPILOT_DISABLE_USAGE_COLLECTION|$1 $2"')
    assert sky.run("check", "aws") == "|1|1|check aws\n"
    assert "PYTHONPATH" not in sky.environ
    willing = Sky("/opt/sky", {"SKYPILOT_DISABLE_USAGE_COLLECTION": "0"}, None)
    assert willing.program == "/opt/sky"
    assert willing.environ["SKYPILOT_DISABLE_USAGE_COLLECTION"] == "0"


def test_what_it_prints_bears_no_control_characters(tmp_path: Path) -> None:
    sky = program(tmp_path, r"printf 'a\033[2Jb\377'; printf 'x\033[31my' >&2; exit 1")
    assert "\033" not in sky.complaint("status")
    assert sky.complaint("status") == "xy"
    with pytest.raises(ProviderError) as failed:
        sky.run("status")
    assert "\033" not in failed.value.what
    assert "\ufffd" in program(tmp_path, r"printf '\377'").run("status")


def test_one_that_does_not_end_and_one_that_cannot_be_run(tmp_path: Path) -> None:
    sky = program(tmp_path, "exec sleep 60")
    with pytest.raises(ProviderError, match="sky status did not answer within 0 s"):
        sky.run("status", "-r", timeout_s=0.2)
    with pytest.raises(ProviderRefused, match="cannot be run: No such file"):
        Sky(str(tmp_path / "none"), {}, tmp_path).run("status")


def test_it_is_not_kept_waiting_for_words_of_ours(tmp_path: Path) -> None:
    assert program(tmp_path, "cat; echo done").run("status") == "done\n"


# -- its version -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("skypilot, version 0.14.1", "0.14.1"),
        ("skypilot, version 0.14.0", "0.14.0"),
        ("skypilot, version 0.14", "0.14"),
        ("a warning\nskypilot, version 1.0.0.dev20260101\n", "1.0.0.dev20260101"),
    ],
)
def test_a_version_that_is_new_enough(text: str, version: str) -> None:
    sky = SaidSky(text)
    assert sky.version() == version
    assert sky.asked == [("--version",)]


@pytest.mark.parametrize("text", ["skypilot, version 0.13.9", "version 0.9", "0.14.1", "", "v1"])
def test_an_older_version_or_none_is_refused(text: str) -> None:
    with pytest.raises(ProviderRefused) as old:
        SaidSky(text).version()
    assert old.value.what == f"{text or 'SkyPilot'} is too old: 0.14 or newer is needed"


@pytest.mark.parametrize(
    ("version", "is_said"),
    [("0.14", False), ("0.14.3", False), ("0.15.0", True), ("1.0.0.dev20261027", True)],
)
def test_a_version_newer_than_the_tested_one_is_said(version: str, is_said: bool) -> None:
    said = why_untested(version)
    assert bool(said) is is_said
    assert not said or said == f"{version} is newer than 0.14.1, the version that was tested"


def test_the_end_of_a_long_word_is_told() -> None:
    with pytest.raises(ProviderRefused) as old:
        SaidSky("x" * 100 + "y" * 60).version()
    assert old.value.what.startswith("y" * 60 + " is")


def test_an_answer_is_waited_for_as_long_as_skypilot_may_need() -> None:
    sky = SaidSky("[]")
    sky.run("status")
    sky.complaint("api", "logs")
    sky.read("status")
    sky.run("launch", timeout_s=5.0)
    assert sky.waited_s == [90.0, 90.0, 90.0, 5.0]


# -- its JSON ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("out", "read", "beside"),
    [
        ('[{"a": 1}]', [{"a": 1}], ""),
        ("Refreshing …\n{}", {}, "Refreshing …\n"),
        ("[warning] x\n[1]", [1], "[warning] x\n"),
        ("a [b]\n{\n[2]", [2], "a [b]\n{\n"),
    ],
)
def test_json_is_found_after_whatever_is_said_first(out: str, read: Any, beside: str) -> None:
    sky = SaidSky(out, "a complaint")
    assert sky.read_and_said("status", "-r") == (read, f"{beside}\na complaint")
    assert sky.read("status") == read
    assert sky.asked == [("status", "-r", "-o", "json"), ("status", "-o", "json")]


@pytest.mark.parametrize("out", ["", "No clusters", "[1", " [1]", "[" * 200_000, "[1] and more"])
def test_no_json_is_an_error_of_ours(out: str) -> None:
    with pytest.raises(ProviderError, match="sky status printed no JSON") as odd:
        SaidSky(out).read("status", "-r")
    assert odd.value.next_step == "sky status -o json"


def test_a_flood_of_what_might_be_json_is_given_up() -> None:
    assert SaidSky("[\n" * 19 + "[7]").read("status") == [7]
    with pytest.raises(ProviderError, match="printed no JSON"):
        SaidSky("[\n" * 20 + "[7]").read("status")


def test_a_failure_is_none_whatever_was_printed() -> None:
    with pytest.raises(ProviderError, match=r"sky status failed: it gave no reason"):
        SaidSky("", code=1).read("status", "-r")
    with pytest.raises(ProviderError, match=r"sky status failed: in a word"):
        SaidSky("[1]", "in a word", 1).read("status")
    with pytest.raises(ProviderError, match=r"sky down failed: Cluster x not found"):
        SaidSky("Cluster x not found", code=2).run("down", "x")


def test_a_complaint_is_one_only_where_it_failed() -> None:
    assert SaidSky("", "a warning").complaint("api", "logs") == ""
    assert SaidSky("", "why not", 1).complaint("api", "logs") == "why not"


DOWN = (
    "sky.exceptions.ApiServerConnectionError: Could not connect to SkyPilot API server at x.",
    "RuntimeError: SkyPilot API server process exited unexpectedly.",
)


@pytest.mark.parametrize("said", DOWN)
@pytest.mark.parametrize("code", [0, 1])
def test_a_server_that_is_down_is_no_complaint_of_its_own(said: str, code: int) -> None:
    with pytest.raises(ProviderError, match="API server is down: ") as down:
        SaidSky("", said, code).complaint("api", "logs")
    assert down.value.next_step == "sky api info; sky api start"


# -- why ---------------------------------------------------------------------------------------


def test_the_last_exception_begins_the_reasons_and_advice_is_none() -> None:
    said = (
        "Traceback (most recent call last):\n"
        "ValueError: the first\n\n"
        "  sky.exceptions.ResourcesUnavailableError: Failed to acquire resources.  \n"
        "To keep retrying until the cluster is up, use the `--retry-until-up` flag.\n"
        "Reason: no quota\n"
        "Hint: sky check\n"
        "never told\n"
    )
    assert reasons_in(said) == [
        "sky.exceptions.ResourcesUnavailableError: Failed to acquire resources.",
        "Reason: no quota",
    ]
    assert reasons_in("ValueError: x\nTo fix: relax\nmore") == ["ValueError: x"]


def test_without_an_exception_the_last_line_is_the_reason() -> None:
    assert reasons_in("one\ntwo\n\n") == ["two"]
    assert reasons_in("one\nTo keep retrying: x") == ["one"]
    assert reasons_in("one\nHint: do\ntwo") == ["one"]
    assert reasons_in("\n \n") == []


def test_a_reason_is_cut_and_the_first_is_told() -> None:
    with pytest.raises(ProviderError) as failed:
        SaidSky("", "ValueError: " + "x" * 1000 + "\nmore", 1).run("launch")
    assert failed.value.what == "sky launch failed: ValueError: " + "x" * 288


# -- what it may rent from ---------------------------------------------------------------------
ENABLED = {"default": {"AWS": ["compute", "storage"], "RunPod": ["compute"]}, "other": ["Lambda"]}


def test_clouds_are_read_from_every_workspace() -> None:
    sky = SaidSky(ENABLED)
    assert sky.enabled() == {"aws", "runpod", "lambda"}
    assert sky.asked == [("check", "-o", "json")]


@pytest.mark.parametrize("told", [[], ["AWS"], {"default": "AWS"}, {"default": [1, None]}, {}])
def test_words_that_name_no_clouds_enable_none(told: Any) -> None:
    assert SaidSky(told).enabled() == frozenset()


def test_a_cloud_that_is_enabled_is_not_asked_about_twice() -> None:
    sky = SaidSky(ENABLED)
    sky.require_cloud("AWS")
    assert sky.asked == [("check", "AWS", "-o", "json")]


def refused(said: str, code: int = 0) -> str:
    sky = SaidSky(said, code=code)
    sky.by_words = {("json",): (0, {"default": {"AWS": []}}, "")}
    for line, step in (("HOME=/x sky check Lambda",) * 2, ("", "sky check Lambda")):
        with pytest.raises(AuthError) as denied:
            sky.require_cloud("Lambda", line)
        assert denied.value.next_step == step
    return denied.value.what.removeprefix("Lambda is not enabled in SkyPilot: ")


def test_why_a_cloud_is_not_enabled_is_sky_checks_own_reason() -> None:
    said = (
        "Checking credentials …\n  Lambda: disabled\n    Reason [compute]: no key in\n"
        "      ~/.lambda_cloud. Get one: https://x\n\nTo enable a cloud, follow the hints.\n"
    )
    assert refused(said) == "no key in ~/.lambda_cloud. Get one: https://x"
    assert refused("nothing of use") == "no access"
    assert refused("Reason: " + "x" * 1000) == "x" * 300
    assert refused("Reason: broken", code=1) == "broken"


# -- launches -----------------------------------------------------------------------------------
# A launch that SkyPilot took, and then found nothing to rent: known at once, and never wrongly.


WHY = "\nReason: \x1b[31mInsufficientInstanceCapacity\x1b[0m: no p5.48xlarge here"
NOTHING = (
    "aws has no free machine for this account: Failed to acquire resources in all zones in aws/"
)


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


@pytest.fixture
def failed(rig: Rig) -> Rig:
    """Its launch was taken, and has just failed; nobody has looked since."""
    rig.compute().create(request())
    rig.set(none_left=WHY)
    rig.on(30.0)
    return rig


def listed(rig: Rig) -> list[PodSeen]:
    """What a command that comes anew sees."""
    return list(rig.compute().list_pods())


def test_a_launch_that_found_nothing_is_gone_at_the_next_look_and_says_why(rig: Rig) -> None:
    compute = rig.compute()
    compute.create(request())
    assert [pod.status for pod in compute.list_pods()] == ["creating"]
    rig.set(none_left="")
    rig.on(30.0)
    (pod,) = compute.list_pods()
    assert (pod.pod_id, pod.name, pod.status, pod.rate) == (NAME, NAME, "gone", ZERO)
    (launch,) = rig.told()["requests"]
    look_up = f"(sky api logs {launch['request_id'][:8]})"
    assert pod.never_made == f"{NOTHING}us-east-1 {look_up}"
    assert compute.bill(NAME) == Bill(NAME, ZERO, final=True)
    with pytest.raises(NoCapacity, match="has no free machine"):
        compute.create(request())
    assert len(rig.told()["requests"]) == 1


@pytest.mark.parametrize(("provider", "some"), [("aws", False), ("lambda", True)])
def test_of_several_machines_some_may_have_been_billed_where_each_is_asked_for_alone(
    rig: Rig, provider: str, some: bool
) -> None:
    compute = rig.compute(provider)
    compute.create(request(nodes=2))
    rig.set(none_left="")
    rig.on(36.0)
    (pod,) = compute.list_pods()
    assert (pod.status, bool(pod.never_made), bool(pod.rate)) == ("gone", True, some)
    rig.on(60.0)
    two_disks = price_per_hour(provider, "running", 2 * 120)
    estimate = cost(request().rate, 36.0) + cost(two_disks, 36.0) if some else ZERO
    assert compute.bill(NAME) == Bill(NAME, estimate, final=True)


def test_it_is_known_after_a_crash_and_asked_about_once(failed: Rig) -> None:
    (pod,) = listed(failed)
    assert pod.never_made
    assert listed(failed) == [pod]
    asked = [words for words in failed.told()["asked"] if words[:2] == ["api", "logs"]]
    assert len(asked) == 1
    failed.later(3601.0)
    assert listed(failed) == [], "nobody needs to know it behind its hard stop"


def test_what_is_listed_again_was_made(failed: Rig) -> None:
    before = failed.told()["clusters"]
    listed(failed)
    row = {"name": NAME, "status": "UP", "init_kind": None, "launched_at": int(NOW), "cloud": "AWS"}
    failed.set(clusters={**before, NAME: row})
    assert [(pod.status, pod.never_made) for pod in listed(failed)] == [("running", "")]


TRIED = "sky.exceptions.ResourcesUnavailableError: Failed to acquire resources"
SOLD_OUT = TRIED, f"sky.exceptions.ResourcesUnavailableError: Failed to provision{WHY}"
SET_UP = "sky.exceptions.CommandError: Command /bin/bash -i failed with return code 255"
GONE = "sky.exceptions.ClientError: Failed to stream logs: request not found"


def missing(rig: Rig, *states: str, log: tuple[str, str] = SOLD_OUT) -> None:
    """Its cluster is in no list, and its launches, whose log is this, are in these states."""
    rig.compute().create(request())
    (launch,) = rig.told()["requests"]
    ids = [f"{launch['request_id'][:-1]}{n}" for n, _ in enumerate(states)]
    launches = [launch | {"status": s, "request_id": i} for s, i in zip(states, ids, strict=True)]
    rig.set(clusters={}, requests=launches, logs=dict.fromkeys(ids, log))


@pytest.mark.parametrize("states", [["FAILED"], ["FAILED", "FAILED"]])
def test_it_need_not_have_been_listed_at_all(rig: Rig, states: list[str]) -> None:
    missing(rig, *states)
    (pod,) = listed(rig)
    assert (
        "for this account: Reason: InsufficientInstanceCapacity: no p5.48xlarge here ("
        in pod.never_made
    )


@pytest.mark.parametrize("error", [SET_UP, "", GONE])
def test_one_that_failed_otherwise_may_have_made_a_machine(rig: Rig, error: str) -> None:
    """Also where another place, that was tried before, had nothing."""
    missing(rig, "FAILED", log=(TRIED, error))
    assert listed(rig) == []


def test_what_was_listed_before_its_launch_had_failed_proves_nothing(rig: Rig) -> None:
    """Between the list and the question its cluster is made, and its set-up fails."""
    rig.compute().create(request())
    there = rig.told()["clusters"]
    (launch,) = rig.told()["requests"]
    missing(rig, "FAILED")
    rig.set(then={"api logs": {"clusters": there}})
    assert launch["status"] == "RUNNING"
    assert [(pod.status, pod.never_made) for pod in listed(rig)] == [("creating", "")]


def test_no_cached_list_proves_it(rig: Rig) -> None:
    missing(rig, "FAILED")
    rig.set(fail={" -r": "KeyError: 'EXITED'"})
    assert listed(rig) == []
    rig.set(fail={"api": "sky.exceptions.ApiServerConnectionError: Could not connect"})
    assert listed(rig) == []
    rig.set(fail={})
    assert [pod.status for pod in listed(rig)] == ["gone"]


@pytest.mark.parametrize("by_us", [True, False])
def test_a_machine_that_was_there_and_was_taken_down_was_made(rig: Rig, by_us: bool) -> None:
    compute = rig.compute()
    compute.create(request())
    (launch,) = rig.told()["requests"]
    logs = {launch["request_id"]: SOLD_OUT}
    rig.set(requests=[launch | {"status": "FAILED"}], logs=logs)
    rig.row(init_kind="unhealthy", launched_at=int(NOW))
    rig.later(10.0)
    if by_us:
        assert compute.terminate(NAME) is True
    compute.list_pods()
    assert rig.told()["clusters"] == {}, "it has no agent: it was ended"
    assert listed(rig) == []
    rig.later(60.0)
    assert compute.list_pods() == ()
    assert present(compute.bill(NAME)).amount > ZERO
