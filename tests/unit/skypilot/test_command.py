"""What ``sky`` prints, taken apart: its version, its JSON, its reasons, its advice.

The texts are those of SkyPilot 0.14.1, whose own command ``tests/contract/test_skypilot_real.py``
runs where it is installed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.unit.skypilot.said import SaidSky
from trmcloud.core.errors import AuthError, ProviderError, ProviderRefused
from trmcloud.providers.skypilot.command import Sky, find_sky, reasons_in


def program(folder: Path, script: str) -> Sky:
    """A command that is this shell script."""
    path = folder / "sky"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return Sky(str(path), {"PATH": "/usr/bin:/bin", "PYTHONPATH": "/ours", "MINE": "1"})


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
    willing = Sky("sky", {"SKYPILOT_DISABLE_USAGE_COLLECTION": "0"})
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
        Sky(str(tmp_path / "none"), {}).run("status")


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
    with pytest.raises(ProviderError, match=r"sky status failed: it said nothing"):
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
    with pytest.raises(AuthError) as denied:
        sky.require_cloud("Lambda")
    assert denied.value.next_step == "sky check Lambda"
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
