"""RunPod's catalogue, and the log of a pod that boots."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.present import present
from trmcloud.core.control.observation import BootTrouble
from trmcloud.core.errors import ProviderError
from trmcloud.core.money import Usd
from trmcloud.ports.compute import ThrottledError, TransientError
from trmcloud.providers.runpod import offers
from trmcloud.providers.runpod.http import Http
from trmcloud.providers.runpod.offers import ListedOffer, live_offers, read_catalogue
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

# -- RunPod's catalogue, taken apart: REST v2's, as its OpenAPI file has it, and GraphQL's ------


L4 = {
    "id": "NVIDIA L4", "secure": True, "community": True, "availability": "HIGH",
    "price": {"secure": 0.44, "community": 0.3}, "maxCount": {"secure": 4, "community": 1},
    "dataCenters": [
        {"id": "EU-RO-1", "availability": "LOW"},
        {"id": "US-KS-2", "availability": "NONE"},
    ],
}  # fmt: skip
HERE = {"EU-RO-1": "low"}
KEY = {"RUNPOD_API_KEY": "k"}


def read(*gpus: Any, counts: tuple[int, ...] = (), community: bool = False) -> list[ListedOffer]:
    return read_catalogue(lambda params: {"gpus": list(gpus)}, counts, community=community)


def changed(**fields: Any) -> list[ListedOffer]:
    return read({**L4, **fields})


def test_every_count_in_both_clouds_at_its_price() -> None:
    assert changed() == [
        ListedOffer("L4", 1, False, Usd("0.44"), "high", HERE),
        ListedOffer("L4", 2, False, Usd("0.88"), "high", HERE),
        ListedOffer("L4", 4, False, Usd("1.76"), "high", HERE),
        ListedOffer("L4", 1, True, Usd("0.3"), "high", HERE),
    ]


def test_one_question_for_all_or_one_for_each_count_in_one_cloud() -> None:
    asked: list[Mapping[str, str]] = []

    def answer(params: Mapping[str, str]) -> Any:
        asked.append(dict(params))
        return {"gpus": [L4]}

    read_catalogue(answer)
    every = {"include": "AVAILABILITY", "product": "POD"}
    assert asked == [every]
    asked.clear()
    rows = read_catalogue(answer, (1, 2, 8))
    assert [(row.gpus, row.community) for row in rows] == [(1, False), (2, False)]
    assert asked == [{**every, "count": n, "cloud": "SECURE"} for n in ("1", "2", "8")]
    asked.clear()
    rows = read_catalogue(answer, (1, 2), community=True)
    assert [(row.gpus, row.community) for row in rows] == [(1, True)]
    assert asked == [{**every, "count": n, "cloud": "COMMUNITY"} for n in ("1", "2")]


def test_a_price_has_the_six_digits_that_a_32_bit_float_holds() -> None:
    price = {"secure": 1.1899999380111694}
    assert [row.rate for row in changed(price=price)] == [Usd("1.19"), Usd("2.38"), Usd("4.76")]


@pytest.mark.parametrize(
    "price",
    [{}, None, [], {"secure": None}, {"secure": 0}, {"secure": -1.0}, {"secure": 1e6},
     {"secure": "0.44"}, {"secure": True}, {"secure": float("nan")}],
)  # fmt: skip
def test_what_has_no_price_is_not_for_sale(price: Any) -> None:
    assert changed(price=price) == []


def test_dear_is_no_reason_and_no_price_of_one_cloud_hides_the_other() -> None:
    assert [row.rate for row in changed(price={"secure": 999_999, "community": 1})] == [
        Usd(999_999), Usd(1_999_998), Usd(3_999_996), Usd(1),
    ]  # fmt: skip
    assert [row.community for row in changed(price={"community": 1.0})] == [True]
    assert [row.community for row in changed(secure=False)] == [True]
    assert {row.community for row in changed(community=None)} == {False}


@pytest.mark.parametrize("most", [None, {}, {"secure": "8"}, {"secure": 0}, {"secure": 7.5}])
def test_more_than_a_machine_can_have_is_not_listed(most: Any) -> None:
    assert changed(maxCount=most) == []


@pytest.mark.parametrize(
    ("stock", "told"), [("HIGH", "high"), (None, "unknown"), (3, "unknown"), ({}, "unknown")]
)
def test_stock_that_is_not_told_is_unknown(stock: Any, told: str) -> None:
    assert {row.stock for row in changed(availability=stock)} == {told}


@pytest.mark.parametrize(
    "places",
    [None, "EU-RO-1", {}, ["EU-RO-1"], [{"id": 7, "availability": "LOW"}], [{"id": "EU-RO-1"}],
     [{"id": "EU-RO-1", "availability": 1}], [{"availability": "LOW"}]],
)  # fmt: skip
def test_a_place_that_is_odd_is_no_place_and_costs_no_row(places: Any) -> None:
    rows = changed(dataCenters=places)
    assert len(rows) == 4
    assert all(row.data_centres == {} for row in rows)


def test_what_is_none_of_our_hardware_or_no_row_is_passed_over() -> None:
    rows = read("L4", None, {**L4, "id": "AMD MI300X"}, {}, {"id": 7}, L4)
    assert {row.sku for row in rows} == {"L4"}
    assert len(rows) == 4


@pytest.mark.parametrize("answer", [None, [], "gpus", {}, {"gpus": None}, {"gpus": {"id": "x"}}])
def test_an_answer_without_a_list_is_no_catalogue(answer: Any) -> None:
    with pytest.raises(ProviderError, match="RunPod's catalogue does not match its API contract"):
        read_catalogue(lambda params: answer)


def test_what_can_be_had_now_stands_by_its_place() -> None:
    (offer,) = live_offers(lambda params: {"gpus": [L4]}, 5.0, (2,))
    assert (offer.region, offer.gpus, offer.rate) == ("EU-RO-1", 2, Usd("0.88"))
    assert (offer.instance, offer.words) == ("2x_L4_SECURE", "secure; stock low")


PUBLIC = {
    "id": "NVIDIA L4", "secureCloud": True, "communityCloud": True, "securePrice": 0.44,
    "communityPrice": 0.3, "maxGpuCountSecureCloud": 4, "maxGpuCountCommunityCloud": 1,
}  # fmt: skip


def public(monkeypatch: pytest.MonkeyPatch, answer: Any) -> tuple[list[str], list[str]]:
    """What GraphQL's ``answer`` becomes without a key: its instances with their rates, the note."""
    monkeypatch.setattr(offers, "_ask", lambda url, timeout_s, body: answer)
    rows, notes = offers.price_rows({"HOME": "/nowhere"}, 1_795_000_000.0)
    return [
        f"{row['instance']} {row['usd_per_hour']} {row['tier']} {row['stock']}" for row in rows
    ], notes


def test_without_a_key_both_clouds_are_read_by_graphql(monkeypatch: pytest.MonkeyPatch) -> None:
    found, notes = public(monkeypatch, {"data": {"gpuTypes": [PUBLIC, "odd", None]}})
    assert found == [
        "1x_L4_SECURE 0.44 secure unknown",
        "2x_L4_SECURE 0.88 secure unknown",
        "4x_L4_SECURE 1.76 secure unknown",
        "1x_L4_COMMUNITY 0.3 community unknown",
    ]
    assert notes == ["runpod: 4 offers of 2026-11-18 (GraphQL, without a key)"]


@pytest.mark.parametrize("answer", [None, [], {}, {"data": None}, {"data": {"gpuTypes": {}}}])
def test_an_answer_not_of_graphql_is_a_note(monkeypatch: pytest.MonkeyPatch, answer: Any) -> None:
    says = "runpod: not read: GraphQL answers without gpuTypes"
    assert public(monkeypatch, answer) == ([], [says])


@pytest.mark.parametrize(
    ("code", "with_key", "without"),
    [
        (401, "not read: HTTP 401; check RUNPOD_API_KEY", "not read: HTTP 401; set RUNPOD_API_KEY"),
        (403, "not read: HTTP 403; check RUNPOD_API_KEY", "not read: HTTP 403; set RUNPOD_API_KEY"),
        (
            410,
            "unavailable: gone (HTTP 410)",
            "unavailable: gone (HTTP 410); with RUNPOD_API_KEY REST v2 is read instead",
        ),
        (
            429,
            "unavailable: too many requests (HTTP 429)",
            "unavailable: too many requests (HTTP 429)"
            "; with RUNPOD_API_KEY REST v2 is read instead",
        ),
        (500, "not read: HTTP 500", "not read: HTTP 500"),
        (302, "not read: HTTP 302", "not read: HTTP 302"),
    ],
)
def test_a_refusal_says_what_would_help(code: int, with_key: str, without: str) -> None:
    assert offers._refused(code, True) == with_key
    assert offers._refused(code, False) == without


def test_an_answer_of_brackets_alone_is_a_told_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Deeper than Python's parser goes; a reader that dies of it would say nothing, and its trace
    would stand on the user's screen."""
    died: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", died.append)

    monkeypatch.setattr(offers, "_ask", lambda *asked, **more: json.loads("[" * 200_000))
    found, failure = offers.live_prices(KEY, 5.0)
    assert found == []
    assert failure.startswith("RecursionError: ")
    assert died == []


# -- What a booting pod's log is taken for: by its host's lines alone, and never too often ------


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
    assert present(judge(host(limit, pulled, limit), CLEAN)).fatal
    driver = present(judge(host(CUDA, "Status: Image is up to date for x"), CLEAN))
    assert driver.fatal, "a pull says nothing of the driver"


def test_other_trouble_is_told_in_one_line_without_control_or_key() -> None:
    found = present(judge(host("error: \x1b[2Jrpa_SECRET\n" + "x" * 900), CLEAN))
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


def test_a_fatal_line_is_believed_when_read_twice(log: Log, logs: BootLogs, clock: Clock) -> None:
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


def test_logs_take_no_more_than_their_share(log: Log, logs: BootLogs, clock: Clock) -> None:
    for _ in range(600):  # a minute of five pods, each asked for ten times a second
        for pod in "abcde":
            logs.trouble(pod)
        clock.at += 0.1
    assert len(log.asked) <= 60.0 / ALL_EVERY_S + 1
    assert log.asked.count("a") <= 60.0 / EVERY_S + 1


@pytest.mark.parametrize(
    ("error", "held_s"),
    [
        (ThrottledError("slow", where="x", retry_after_s=40.0), 40.0),
        (ThrottledError("slow", where="x"), HOLD_S),
        (TransientError("down", where="x"), HOLD_S),
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
