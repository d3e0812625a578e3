"""The ways in which a pod ends itself, all tried; a restart wins it no time."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.present import present
from tests.unit.pod.leases import HARD_STOP_S, a_lease
from tests.unit.pod.provider import Provider
from trmcloud.core.clock import Instant
from trmcloud.core.contract.pod_contract import Orders
from trmcloud.core.values import replace
from trmcloud.pod.agent.lease_clock import AnchorFile, AnchorNote
from trmcloud.pod.agent.terminate import TERMINATION_NAME, EndAnswer, EndMethod, SelfEnd, ways_of
from trmcloud.pod.agent.watchdog import HARD_STOP_GRACE_S, Watchdog
from trmcloud.pod.machine.environment import for_trainers, pod_environment

# -- terminate ----------------------------------------------------------------------------------
# The ways a pod has to end itself: all tried, each recorded before and after, no key told.


KEY = "rpa_SECRETSECRETSECRET"
POD = "7h9k2m4n6p"


@pytest.fixture
def environment(provider: Provider, tmp_path: Path) -> dict[str, str]:
    (tmp_path / "bin").mkdir()
    return {
        "PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin",
        "RUNPOD_POD_ID": POD,
        "RUNPOD_API_KEY": KEY,
        "RUNPOD_API_BASE_URL": provider.url,
        "TRMCLOUD_RUNPOD_API": provider.url,
    }


def runpodctl(tmp_path: Path, script: str) -> None:
    path = tmp_path / "bin" / "runpodctl"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


class Stop(Exception):
    pass


def run_once(
    environment: Mapping[str, str], folder: Path
) -> tuple[list[dict[str, Any]], list[float], list[str]]:
    """One round of the chain; returns its record, its sleeps and what it told."""
    slept: list[float] = []
    told: list[str] = []
    chain = SelfEnd(
        ways_of(environment),
        folder / TERMINATION_NAME,
        "hard stop",
        now=lambda: 1000.0,
        sleep=slept.append,
        tell=told.append,
    )
    chain.once()
    text = (folder / TERMINATION_NAME).read_text()
    assert KEY not in text
    assert KEY not in "".join(told)
    record = json.loads(text)
    assert record["why"] == "hard stop"
    return record["attempts"], slept, told


def test_all_ways_are_tried_in_order_with_key_and_name(
    provider: Provider, environment: dict[str, str], tmp_path: Path
) -> None:
    attempts, slept, told = run_once(environment, tmp_path)
    assert [a["way"] for a in attempts] == [
        "v2 action terminate",
        "v2 delete",
        "graphql podTerminate",
        "runpodctl remove pod",
        "runpodctl pod delete",
    ]
    assert [a["code"] for a in attempts] == [404, 404, 404, None, None]
    assert [a["ok"] for a in attempts] == [False] * 5
    assert slept == []
    assert attempts[3]["text"] == "runpodctl is not installed"
    assert [(m, p) for m, p, _, _ in provider.asked] == [
        ("POST", f"/v2/pods/{POD}/action"),
        ("DELETE", f"/v2/pods/{POD}"),
        ("POST", "/graphql"),
    ]
    for _, path, headers, _ in provider.asked:
        assert headers["Authorization"] == f"Bearer {KEY}"
        assert not headers["User-Agent"].startswith("Python")
        assert KEY not in path
    assert provider.asked[0][3] == {"action": "terminate"}
    assert provider.asked[2][3] == {
        "query": f'mutation {{ podTerminate(input: {{podId: "{POD}"}}) }}'
    }
    assert len(told) == 5


def test_a_way_that_says_yes_is_given_time_and_the_rest_follow(
    provider: Provider, environment: dict[str, str], tmp_path: Path
) -> None:
    provider.answer("POST", "/graphql", 200, '{"data": {"podTerminate": null}}')
    provider.answer("POST", f"/v2/pods/{POD}/action", 403, '{"title": "Forbidden"}')
    provider.answer("DELETE", f"/v2/pods/{POD}", 204)
    attempts, slept, _ = run_once(environment, tmp_path)
    by_way = {a["way"]: (a["code"], a["ok"]) for a in attempts}
    assert by_way["graphql podTerminate"] == (200, True)
    assert by_way["v2 action terminate"] == (403, False)
    assert by_way["v2 delete"] == (204, True)
    assert slept == [20.0, 20.0]


@pytest.mark.parametrize(
    "body",
    [
        '{"errors": [{"message": "UNAUTHORIZED"}], "data": {"podTerminate": null}}',
        "<html>sign in</html>",
        "[]",
    ],
)
def test_graphql_says_no_with_status_200(
    provider: Provider, environment: dict[str, str], tmp_path: Path, body: str
) -> None:
    provider.answer("POST", "/graphql", 200, body)
    attempts, _, _ = run_once(environment, tmp_path)
    found = next(a for a in attempts if a["way"] == "graphql podTerminate")
    assert (found["code"], found["ok"]) == (200, False)
    assert found["text"] == body


def test_both_generations_of_runpodctl(environment: dict[str, str], tmp_path: Path) -> None:
    runpodctl(tmp_path, f'[ "$*" = "remove pod {POD}" ] && echo "pod removed $RUNPOD_API_KEY"')
    attempts, slept, _ = run_once(environment, tmp_path)
    assert [(a["code"], a["ok"]) for a in attempts[3:]] == [(0, True), (1, False)]
    assert attempts[3]["text"] == "pod removed ***"
    assert slept == [20.0]
    runpodctl(tmp_path, f'[ "$*" = "pod delete {POD}" ] || {{ echo "unknown command"; exit 2; }}')
    attempts, _, _ = run_once(environment, tmp_path)
    assert [(a["code"], a["ok"]) for a in attempts[3:]] == [(2, False), (0, True)]


def test_a_command_that_hangs_is_given_up(
    environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trmcloud.pod.agent.terminate._TIMEOUT_S", 0.3)
    runpodctl(tmp_path, "sleep 60 & wait")
    attempts, _, _ = run_once(environment, tmp_path)
    assert attempts[3]["text"].startswith("no answer within")
    assert attempts[3]["code"] is None


def test_an_attempt_is_on_disk_before_it_is_made(tmp_path: Path) -> None:
    """The way that works kills this process: the last line written is how that was done."""
    seen: list[Any] = []

    def look() -> EndAnswer:
        seen.append(json.loads((tmp_path / TERMINATION_NAME).read_text())["attempts"])
        return EndAnswer(None, "", False)

    chain = SelfEnd(
        (EndMethod("a", look), EndMethod("b", look)), tmp_path / TERMINATION_NAME, "told to"
    )
    chain.once()
    assert [[(a["way"], a["ok"]) for a in each] for each in seen] == [
        [("a", None)],
        [("a", False), ("b", None)],
    ]


def test_each_attempt_can_be_read_for_a_moment_before_it_is_made(tmp_path: Path) -> None:
    record = tmp_path / "termination.json"
    made: list[str] = []
    shown: list[tuple[str, bool]] = []

    def way(name: str) -> EndMethod:
        def refuse() -> EndAnswer:
            made.append(name)
            return EndAnswer(403, "", False)

        return EndMethod(name, refuse)

    def sleep(seconds: float) -> None:
        assert seconds == 2.0
        last = json.loads(record.read_text())["attempts"][-1]
        shown.append((last["way"], last["way"] in made or last["ok"] is not None))

    SelfEnd((way("a"), way("b")), record, "hard stop", sleep=sleep, shown_s=2.0).once()
    assert made == ["a", "b"]
    assert shown == [("a", False), ("b", False)]


def test_nobody_answers(environment: dict[str, str], tmp_path: Path) -> None:
    environment["RUNPOD_API_BASE_URL"] = "http://127.0.0.1:1"
    environment["TRMCLOUD_RUNPOD_API"] = "file:///etc"
    attempts, _, _ = run_once(environment, tmp_path)
    assert "refused" in attempts[2]["text"]
    assert attempts[0]["text"] == attempts[1]["text"] == "its address is not http"


@pytest.mark.parametrize("tail", ["", "/", "/v2", "/v2/"])
def test_the_address_may_end_in_v2_and_graphql_lies_beside_it(
    provider: Provider, environment: dict[str, str], tmp_path: Path, tail: str
) -> None:
    environment["TRMCLOUD_RUNPOD_API"] = provider.url + tail
    del environment["RUNPOD_API_BASE_URL"]
    run_once(environment, tmp_path)
    assert [path for _, path, _, _ in provider.asked] == [
        f"/v2/pods/{POD}/action",
        f"/v2/pods/{POD}",
        "/graphql",
    ]


def test_it_goes_on_for_ever_and_keeps_its_record_short(tmp_path: Path) -> None:
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 200:
            raise Stop

    def boom() -> EndAnswer:
        raise RuntimeError("never mind")

    chain = SelfEnd((EndMethod("a", boom),), tmp_path / "t.json", "told to", sleep=sleep)
    with pytest.raises(Stop):
        chain.run()
    assert slept[:4] == [10.0, 30.0, 60.0, 60.0]
    attempts = json.loads((tmp_path / "t.json").read_text())["attempts"]
    assert len(attempts) == 60
    assert attempts[0]["text"] == "RuntimeError: never mind"


def test_a_disk_that_is_full_does_not_stop_it(tmp_path: Path) -> None:
    tried: list[str] = []

    def try_it() -> EndAnswer:
        tried.append("a")
        return EndAnswer(200, "", True)

    SelfEnd(
        (EndMethod("a", try_it),), tmp_path / "absent" / "t.json", "", sleep=lambda s: None
    ).once()
    SelfEnd((EndMethod("a", try_it),), None, "", sleep=lambda s: None).once()
    assert tried == ["a", "a"]


def names(environment: Mapping[str, str]) -> list[str]:
    return [way.name for way in ways_of(environment)]


def test_the_ways_are_the_providers() -> None:
    assert names({}) == []
    assert names({"TRMCLOUD_PROVIDER": "none", "RUNPOD_POD_ID": POD}) == []
    assert names({"TRMCLOUD_PROVIDER": "unheard"}) == []
    assert names({"TRMCLOUD_PROVIDER": "shutdown"}) == [
        "systemctl poweroff",
        "shutdown now",
        "poweroff",
    ]
    assert len(names({"RUNPOD_POD_ID": POD})) == 5
    assert names({"TRMCLOUD_PROVIDER": "runpod", "RUNPOD_POD_ID": 'x"; rm -rf /'}) == []


def test_what_only_the_first_process_was_told_is_found(tmp_path: Path) -> None:
    record = tmp_path / "environ"
    record.write_bytes(b"RUNPOD_POD_ID=abc\0PATH=/other\0TRMCLOUD_POD=p\0odd\0")
    found = pod_environment({"PATH": "/bin", "TRMCLOUD_POD": "mine"}, record)
    assert found == {"PATH": "/bin", "TRMCLOUD_POD": "mine", "RUNPOD_POD_ID": "abc"}
    assert pod_environment({"A": "b"}, tmp_path / "absent") == {"A": "b"}


def test_trainers_inherit_no_key() -> None:
    environment = {
        "PATH": "/bin",
        "RUNPOD_POD_ID": POD,
        "RUNPOD_API_KEY": KEY,
        "TRMCLOUD_HOST_KEY": "k",
        "TRMCLOUD_LEASE": "l",
        "TRMCLOUD_JOBS": "j",
        "TRMCLOUD_CHECK": "c",
        "TRMCLOUD_BOOT": "0",
        "TRMCLOUD_POD": "p",
    }
    assert for_trainers(environment) == {"PATH": "/bin", "RUNPOD_POD_ID": POD, "TRMCLOUD_POD": "p"}


def test_a_machine_that_skypilot_made_asks_for_its_autodown_then_powers_off() -> None:
    told = {
        "TRMCLOUD_PROVIDER": "skypilot+shutdown",
        "TRMCLOUD_SKY_HOME": "/home/ubuntu",
        "TRMCLOUD_SKY_USER": "ubuntu",
    }
    assert names(told) == ["skypilot autodown", "systemctl poweroff", "shutdown now", "poweroff"]
    assert names({**told, "TRMCLOUD_PROVIDER": "skypilot"}) == ["skypilot autodown"]
    assert names({**told, "TRMCLOUD_SKY_USER": "a; rm"}) == names({"TRMCLOUD_PROVIDER": "shutdown"})


# -- A restarted container, a rebooted host and a clock that is set win the pod no time ---------


GRANTED = 1_700_000_000.0
LEASE = a_lease(GRANTED)


def seconds_left(folder: Path, now: Instant, lease: object = LEASE) -> float:
    """What a watchdog that starts now, in a container started anew, believes to have."""
    guard = Watchdog(AnchorFile(folder))
    look = {"agent_runs": False, "agent_done": False, "told": False, "result": None}
    guard.look(now, lease, **look)  # type: ignore[arg-type]
    return present(guard.seconds_left(now)) - HARD_STOP_GRACE_S


def test_a_restart_goes_on_where_the_first_start_stood(tmp_path: Path) -> None:
    assert seconds_left(tmp_path, Instant(GRANTED, 50.0, "a")) == pytest.approx(HARD_STOP_S)
    assert seconds_left(tmp_path, Instant(GRANTED + 400, 450.0, "a")) == pytest.approx(200.0)


def test_a_clock_set_back_across_a_restart_does_not_extend_the_deadline(tmp_path: Path) -> None:
    seconds_left(tmp_path, Instant(GRANTED, 50.0, "a"))
    assert seconds_left(tmp_path, Instant(GRANTED - 3600, 450.0, "a")) == pytest.approx(200.0)
    assert seconds_left(tmp_path, Instant(GRANTED - 3600, 700.0, "a")) == pytest.approx(-50.0)


def test_a_watchdog_that_starts_after_the_deadline_ends_the_pod_at_once(tmp_path: Path) -> None:
    seconds_left(tmp_path, Instant(GRANTED, 50.0, "a"))
    guard = Watchdog(AnchorFile(tmp_path))
    late = Instant(GRANTED - 7200, 50.0 + HARD_STOP_S + 2, "a")
    act = guard.look(late, LEASE, agent_runs=False, agent_done=False, told=False, result=None)
    assert (act, guard.why) == (Watchdog.END, "hard stop")


def test_without_its_note_the_clock_set_back_would_have_won(tmp_path: Path) -> None:
    """What the note is for: this is the time that a forgetful watchdog would grant."""
    seconds_left(tmp_path, Instant(GRANTED, 50.0, "a"))
    (tmp_path / "anchor.json").unlink()
    left = seconds_left(tmp_path, Instant(GRANTED - 3600, 450.0, "a"))
    assert left == pytest.approx(HARD_STOP_S)


def test_after_a_reboot_the_deadline_is_no_further_than_when_it_was_first_seen() -> None:
    note = AnchorNote(Instant(GRANTED + 500, 50.0, "a"), lost_s=500.0)
    seen_late = note.anchor(GRANTED + 600, GRANTED)
    set_back = Instant(GRANTED, 2.0, "b")
    assert seen_late.seconds_left(set_back) == pytest.approx(100.0)


@pytest.mark.parametrize("ahead_s", [0.0, -3600.0, 7200.0])
def test_an_extended_lease_adds_what_was_reserved_whatever_the_wall_clock_says(
    tmp_path: Path, ahead_s: float
) -> None:
    """Counted anew from the wall clock of then, one that was wrong at the grant would add more."""
    guard = Watchdog(AnchorFile(tmp_path))
    look = {"agent_runs": True, "agent_done": False, "told": False, "result": None}
    guard.look(Instant(GRANTED, 50.0, "a"), LEASE, **look)  # type: ignore[arg-type]
    extendable = replace(LEASE, limit_at=LEASE.hard_stop_at + 900)
    later = extendable.extended(Orders(epoch=2, hard_stop_at=LEASE.hard_stop_at + 600))
    assert later is not None
    now = Instant(GRANTED + 500 + min(ahead_s, 0.0), 550.0, "a")
    guard.look(now, later, **look)  # type: ignore[arg-type]
    left_s = HARD_STOP_S + 600 - 500 + HARD_STOP_GRACE_S
    assert guard.seconds_left(now) == pytest.approx(left_s)
    guard.look(now, replace(LEASE, hard_stop_at=GRANTED + 99_999), **look)  # type: ignore[arg-type]
    assert guard.seconds_left(now) == pytest.approx(left_s), "a lease of an earlier epoch"


def test_another_stop_of_the_same_lease_does_not_count(tmp_path: Path) -> None:
    guard = Watchdog(AnchorFile(tmp_path))
    look = {"agent_runs": True, "agent_done": False, "told": False, "result": None}
    now = Instant(GRANTED, 50.0, "a")
    guard.look(now, LEASE, **look)  # type: ignore[arg-type]
    for seconds in (-200, 200):
        other = replace(LEASE, hard_stop_at=LEASE.hard_stop_at + seconds)
        guard.look(now, other, **look)  # type: ignore[arg-type]
        assert guard.seconds_left(now) == pytest.approx(HARD_STOP_S + HARD_STOP_GRACE_S)


def test_a_damaged_note_is_made_anew(tmp_path: Path) -> None:
    for text in ("", "{", '{"epoch": 1}', '{"epoch":1,"wall":"x","boot":0,"boot_id":""}', "[]"):
        (tmp_path / "anchor.json").write_text(text)
        assert AnchorFile(tmp_path).read_anchor() is None
    now = Instant(GRANTED, 50.0, "a")
    seconds_left(tmp_path, now)
    assert AnchorFile(tmp_path).read_anchor() == AnchorNote(now)


def test_a_note_that_cannot_be_written_is_passed_over(tmp_path: Path) -> None:
    now = Instant(GRANTED, 50.0, "a")
    assert seconds_left(tmp_path / "absent", now) == pytest.approx(HARD_STOP_S)


def test_a_machine_restarted_with_a_clock_set_back_goes_on_at_its_last_look(
    tmp_path: Path,
) -> None:
    guard = Watchdog(AnchorFile(tmp_path))
    look = {"agent_runs": True, "agent_done": False, "told": False, "result": None}
    for passed in (0.0, 100.0, 400.0):
        set_back_s = 3600.0 if passed > 200 else 0.0
        now = Instant(GRANTED + passed - set_back_s, 50.0 + passed, "a")
        guard.look(now, LEASE, **look)  # type: ignore[arg-type]
    once = Instant(GRANTED + 420 - 3600, 2.0, "b")
    assert seconds_left(tmp_path, once) == pytest.approx(HARD_STOP_S - 420)
    twice = Instant(GRANTED + 450 - 3600, 1.0, "c")
    assert seconds_left(tmp_path, twice) == pytest.approx(HARD_STOP_S - 450)
    right_again = Instant(GRANTED + 460, 11.0, "c")
    assert seconds_left(tmp_path, right_again) == pytest.approx(HARD_STOP_S - 460)


def test_a_clock_set_back_after_a_restart_extends_nothing(tmp_path: Path) -> None:
    """From its start on a watchdog counts by this machine's clock since boot, not by that note's
    wall clock."""
    seconds_left(tmp_path, Instant(GRANTED, 50.0, "a"))
    guard = Watchdog(AnchorFile(tmp_path))
    look = {"agent_runs": True, "agent_done": False, "told": False, "result": None}
    guard.look(Instant(GRANTED + 100, 2.0, "b"), LEASE, **look)  # type: ignore[arg-type]
    set_back = Instant(GRANTED + 300 - 3600, 202.0, "b")
    left = guard.seconds_left(set_back)
    assert left == pytest.approx(HARD_STOP_S - 300 + HARD_STOP_GRACE_S)
