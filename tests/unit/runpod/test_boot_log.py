"""What a booting pod's log is taken for: by its host's lines alone, and never too often."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import pytest

from trmcloud.core.control.observation import BootTrouble
from trmcloud.core.errors import ProviderError
from trmcloud.providers.runpod.http import Http, Throttled, Transient
from trmcloud.providers.runpod.records import (
    ALL_EVERY_S,
    CONFIRM_S,
    EVERY_S,
    HOLD_S,
    BootLogs,
    LogLine,
    judge,
    log_lines,
)

CLEAN = Http("rpa_SECRET", bound_s=1.0).clean
CUDA = "nvidia-container-cli: requirement error: unsatisfied condition: cuda>=12.8, please update"


def host(*texts: str) -> list[LogLine]:
    return [LogLine("system", text) for text in texts]


@pytest.mark.parametrize(
    "text",
    [
        f"error starting container: runc create failed: {CUDA}",
        "Error response from daemon: layer does not exist",
        "failed to register layer: Container ID 197609 cannot be mapped to a host ID",
        "manifest for runpod/pytorch:9 not found: manifest unknown: manifest unknown",
        "toomanyrequests: You have reached your pull rate limit",
        "write /var/lib/docker/tmp/x: No Space Left On Device",
    ],
)
def test_known_fatal_lines_of_the_host(text: str) -> None:
    assert judge(host("create container x", text), CLEAN) == BootTrouble(CLEAN(text), fatal=True)
    assert judge([LogLine("container", text)], CLEAN) is None
    assert judge([*host(text), LogLine("container", "boots")], CLEAN) is None, "it runs after all"


def test_what_was_overcome_counts_no_more() -> None:
    limit, pulled = "toomanyrequests: slow down", "Status: Downloaded newer image for x"
    assert judge(host(limit, pulled), CLEAN) is None
    again = judge(host(limit, pulled, limit), CLEAN)
    assert again is not None
    assert again.fatal
    driver = judge(host(CUDA, "Status: Image is up to date for x"), CLEAN)
    assert driver is not None
    assert driver.fatal, "a pull says nothing of the driver"


def test_other_trouble_is_told_in_one_line_without_control_or_key() -> None:
    found = judge(host("error: \x1b[2Jrpa_SECRET\n" + "x" * 900), CLEAN)
    assert found is not None
    assert not found.fatal
    assert "\x1b" not in found.text
    assert "\n" not in found.text
    assert "rpa_SECRET" not in found.text
    assert len(found.text) <= 301
    assert judge(host("start container for x: begin", "Pull complete"), CLEAN) is None


def test_an_event_stream_as_the_contract_shows_it_and_odd_ones() -> None:
    line = json.dumps({"ts": "2026-06-01T12:02:03Z", "source": "system", "line": "a"})
    stream = ["id: 2026-06-01T12:02:03Z/000000000001", f"data: {line}", "", ": keep-alive", ""]
    odd = ["data: {", "", "data: [1]", "", 'data: {"source": 1, "line": "x"}', "", "data:" + line]
    assert log_lines([*stream, *odd]) == host("a", "a")
    assert log_lines(["data: " + "[" * 100_000]) == []


@dataclass
class Log:
    """An API that has only a log."""

    said: list[str] = field(default_factory=list)
    fails: ProviderError | None = None
    asked: list[str] = field(default_factory=list)
    http: Http = field(default_factory=lambda: Http("rpa_SECRET", bound_s=1.0))

    def log_text(self, pod_id: str, tail: int) -> list[str]:
        self.asked.append(pod_id)
        if self.fails is not None:
            raise self.fails
        return [
            piece
            for text in self.said
            for piece in ("data: " + json.dumps({"source": "system", "line": text}), "")
        ]


class Clock:
    at = 1_000.0

    def __call__(self) -> float:
        return self.at


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def logs(log: Log, clock: Clock) -> BootLogs:
    return BootLogs(log, clock)  # type: ignore[arg-type]


def test_a_fatal_line_is_believed_at_its_second_read(
    log: Log, logs: BootLogs, clock: Clock
) -> None:
    assert logs.trouble("p") is None
    log.said = [CUDA]
    clock.at += EVERY_S
    assert logs.trouble("p") == BootTrouble(CUDA, fatal=False)
    clock.at += CONFIRM_S
    assert logs.trouble("p") == BootTrouble(CUDA, fatal=False), "it was not read again"
    clock.at += EVERY_S - CONFIRM_S
    assert logs.trouble("p") == BootTrouble(CUDA, fatal=True)
    log.said = []
    clock.at += EVERY_S
    assert logs.trouble("p") is None


def test_logs_take_no_more_than_their_share_of_requests(
    log: Log, logs: BootLogs, clock: Clock
) -> None:
    for _ in range(600):  # a minute of five pods, each asked for ten times a second
        for pod in "abcde":
            logs.trouble(pod)
        clock.at += 0.1
    assert len(log.asked) <= 60.0 / ALL_EVERY_S + 1
    assert log.asked.count("a") <= 60.0 / EVERY_S + 1


@pytest.mark.parametrize(
    ("error", "held_s"),
    [
        (Throttled("slow", where="x", retry_after_s=40.0), 40.0),
        (Throttled("slow", where="x"), HOLD_S),
        (Transient("down", where="x"), HOLD_S),
        (ProviderError("403", where="x"), HOLD_S),
    ],
)
def test_a_log_that_cannot_be_read_says_nothing_and_is_left_alone(
    log: Log, logs: BootLogs, clock: Clock, error: ProviderError, held_s: float
) -> None:
    log.fails = error
    assert logs.trouble("p") is None
    clock.at += held_s - 1.0
    assert logs.trouble("p") is None
    assert len(log.asked) == 1
    clock.at += 1.0
    logs.trouble("p")
    assert len(log.asked) == 2


def test_a_clock_that_was_set_back_stops_no_reading(log: Log, logs: BootLogs, clock: Clock) -> None:
    logs.trouble("p")
    clock.at -= 86_400.0
    logs.trouble("p")
    assert len(log.asked) == 2
