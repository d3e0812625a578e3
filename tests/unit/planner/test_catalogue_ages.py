"""Which version of a catalogue is read, how old it is, and what is said where nobody tells."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from trmcloud.adapters.prices.download import Unreadable, _body
from trmcloud.providers.skypilot import offers as sky_offers
from trmcloud.providers.skypilot.offers import BASES, CHANGES, read_cloud

NOW = 1_795_000_000.0  # 2026-11-18
HEAD = "InstanceType,AcceleratorName,AcceleratorCount,Price,SpotPrice,Region\n"
ROWS = HEAD + "p5,H100,8,55.04,14.5,us-east-1\np5e,H200,8,60,,us-east-1\n"
TODAY, MARCH = "2026-11-18T06:00:00Z", "2026-03-01T09:00:00Z"


class Net:
    """What each address gives: text, or why not."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int, float]] = []
        self.files: dict[str, Any] = {}

    def fetch(self, url: str, *, most_bytes: int, within_s: float) -> bytes:
        self.asked.append((url, most_bytes, within_s))
        found = self.files.get(url, Unreadable("HTTP 404", 404))
        if isinstance(found, Exception):
            raise found
        return found if isinstance(found, bytes) else str(found).encode()

    def changed(self, cloud: str, version: str, told: Any) -> None:
        url = f"{CHANGES}?path=catalogs/{version}/{cloud}/vms.csv&per_page=1"
        if isinstance(told, str):
            told = [{"commit": {"committer": {"date": told}}}]
        self.files[url] = told if isinstance(told, Exception | bytes) else json.dumps(told)

    def holds(self, cloud: str, version: str, text: Any, base: str = BASES[0]) -> None:
        self.files[f"{base}/{version}/{cloud}/vms.csv"] = text

    def read(self, cloud: str, **environ: str) -> tuple[int, str]:
        rows, (said,) = read_cloud(cloud, environ, NOW)
        return len(rows), said


@pytest.fixture
def net(monkeypatch: pytest.MonkeyPatch) -> Net:
    made = Net()
    monkeypatch.setattr(sky_offers, "fetch", made.fetch)
    return made


def test_the_version_that_changed_last_is_read(net: Net) -> None:
    net.changed("aws", "v8", MARCH)
    net.changed("aws", "v9", TODAY)
    net.holds("aws", "v9", ROWS)
    assert net.read("aws") == (2, "aws: 3 offers of 2026-11-18 (SkyPilot's v9)")
    assert net.asked == [
        (f"{CHANGES}?path=catalogs/v8/aws/vms.csv&per_page=1", 1 << 20, 10.0),
        (f"{CHANGES}?path=catalogs/v9/aws/vms.csv&per_page=1", 1 << 20, 10.0),
        (f"{BASES[0]}/v9/aws/vms.csv", 32 << 20, 60.0),
    ]


@pytest.mark.parametrize(
    ("date", "said"),
    [
        ("2026-11-17T22:00:00Z", "aws: 3 offers of 2026-11-17 (SkyPilot's v8)"),
        ("2026-11-17T10:00:00Z", "aws: 3 offers of 2026-11-17, 1 day ago (SkyPilot's v8)"),
        ("2026-11-16T10:00:00Z", "aws: 3 offers of 2026-11-16, 2 days ago (SkyPilot's v8)"),
        ("2026-11-17T12:00:00+02:00", "aws: 3 offers of 2026-11-17, 1 day ago (SkyPilot's v8)"),
        ("2026-11-17T10:00:00", "aws: 3 offers of 2026-11-17, 1 day ago (SkyPilot's v8)"),
        ("2026-11-19T10:00:00Z", "aws: 3 offers of 2026-11-19 (SkyPilot's v8)"),
    ],
)
def test_a_catalogue_is_as_old_as_its_last_change(net: Net, date: str, said: str) -> None:
    """It is 11:06 in London on November 18."""
    net.changed("aws", "v8", date)
    net.holds("aws", "v8", ROWS)
    assert net.read("aws") == (2, said)


def test_the_newest_commit_stands_first_and_a_date_without_a_zone_is_gmt(
    net: Net, monkeypatch: pytest.MonkeyPatch
) -> None:
    def commit(date: str) -> dict[str, Any]:
        return {"commit": {"committer": {"date": date}}}

    net.changed("aws", "v8", [commit("2026-11-17T02:00:00"), commit(MARCH)])
    net.holds("aws", "v8", ROWS)
    monkeypatch.setenv("TZ", "Pacific/Auckland")
    time.tzset()
    try:
        assert "of 2026-11-17, 1 day ago" in net.read("aws")[1]
    finally:
        monkeypatch.undo()
        time.tzset()


UNTOLD = [
    (Unreadable("HTTP 403", 403), "HTTP 403"),
    (b"no json", "no date is in the answer"),
    (b"[" * 200_000, "no date is in the answer"),
    ([], "no date is in the answer"),
    ({}, "no date is in the answer"),
    ([{}], "no date is in the answer"),
    ([{"commit": None}], "no date is in the answer"),
    ([{"commit": {"committer": {"date": 5}}}], "no date is in the answer"),
    ("yesterday", "no date is in the answer"),
    ("0001-01-01T00:00:00Z", "its date has not been yet"),
    ("1970-01-01T00:00:00Z", "its date has not been yet"),
    ("2026-11-19T11:06:41Z", "its date has not been yet"),
]


@pytest.mark.parametrize(("told", "why"), UNTOLD)
def test_what_is_made_by_hand_is_not_read_without_its_age(net: Net, told: Any, why: str) -> None:
    for version in ("v8", "v9"):
        net.changed("lambda", version, told)
        net.holds("lambda", version, ROWS)
    says = f"lambda: not read: how old SkyPilot's catalogue of it is cannot be had ({why})"
    assert net.read("lambda") == (0, says)


def test_what_is_made_several_times_a_day_is_taken_for_todays(net: Net) -> None:
    net.changed("aws", "v8", Unreadable("HTTP 403", 403))
    net.holds("aws", "v8", ROWS)
    assert net.read("aws") == (2, "aws: 3 offers of 2026-11-18 (SkyPilot's v8)")


@pytest.mark.parametrize("date", ["1970-01-01T00:00:01Z", "2026-11-19T11:06:40Z"])
def test_the_first_and_the_last_instant_that_is_believed(net: Net, date: str) -> None:
    net.changed("lambda", "v8", date)
    net.holds("lambda", "v8", HEAD + "gpu_8x,H100,8,20,,us-east-1\n")
    assert net.read("lambda")[0] == 1


def test_the_second_address_is_asked_where_the_first_refuses(net: Net) -> None:
    net.changed("aws", "v8", TODAY)
    net.holds("aws", "v8", ROWS, BASES[1])
    assert net.read("aws")[0] == 2
    net.files.clear()
    net.changed("aws", "v8", TODAY)
    net.holds("aws", "v8", Unreadable("the first", 403))
    net.holds("aws", "v8", Unreadable("the second", 403), BASES[1])
    assert net.read("aws") == (0, "aws: not read: the first")


def test_addresses_of_ones_own_are_the_only_ones_asked(net: Net) -> None:
    net.files = {
        "http://127.0.0.1/c?path=catalogs/v8/aws/vms.csv&per_page=1": json.dumps(
            [{"commit": {"committer": {"date": TODAY}}}]
        ),
        "http://127.0.0.1/b/v8/aws/vms.csv": ROWS,
    }
    own = {
        "TRMCLOUD_SKY_CATALOGS": " http://127.0.0.1/b/ ",
        "TRMCLOUD_SKY_CATALOG_CHANGES": " http://127.0.0.1/c ",
    }
    assert net.read("aws", **own)[0] == 2
    net.files.clear()
    assert net.read("aws", **own) == (0, "aws: not read: HTTP 404")
    assert not any("github" in url or "amazonaws" in url for url, _, _ in net.asked)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"\xff\xfe", "aws: not read: the answer is no text"),
        ("<html>", "aws: not read: the answer is no table"),
        (HEAD, "aws: no offers of known GPUs"),
        (HEAD + "p5,H100,8,NaN,,r\n", "aws: no offers of known GPUs; 1 rows not believed"),
        (
            ROWS + "p6,H100,8,NaN,,r\n",
            "aws: 3 offers of 2026-11-18 (SkyPilot's v8); 1 rows not believed",
        ),
    ],
)
def test_what_came_of_it_is_one_line(net: Net, text: Any, said: str) -> None:
    net.changed("aws", "v8", TODAY)
    net.holds("aws", "v8", text)
    assert net.read("aws")[1] == said


# -- a body ------------------------------------------------------------------------------------


class Body:
    def __init__(self, *chunks: bytes, told: str | None = None) -> None:
        self.chunks = [*chunks, b""]
        self.headers = {} if told is None else {"Content-Length": told}
        self.read = 0

    def read1(self, most: int) -> bytes:
        assert most == 65_536
        self.read += 1
        return self.chunks[self.read - 1]


def body(made: Body, most: int = 5, until: float = 1e18) -> bytes:
    return _body(made, most, until)


@pytest.mark.parametrize("told", [None, "5", "", "x", "-1", "4"])
def test_a_body_is_read_to_its_end(told: str | None) -> None:
    assert body(Body(b"123", b"45", told=told)) == b"12345"


def test_a_body_that_is_larger_than_it_may_be_is_refused() -> None:
    said = Body(b"1", told="3145728")
    with pytest.raises(Unreadable, match="larger than 2 MiB"):
        body(said, 2 << 20)
    assert said.read == 0, "none of it was read"
    unsaid = Body(b"1" * (2 << 20), b"2", b"3")
    with pytest.raises(Unreadable, match="larger than 2 MiB"):
        body(unsaid, 2 << 20)
    assert unsaid.read == 2
    assert len(body(Body(b"1" * (2 << 20), told=str(2 << 20)), 2 << 20)) == 2 << 20


def test_a_body_that_breaks_off_is_none() -> None:
    with pytest.raises(Unreadable, match="broke off"):
        body(Body(b"1234", told="5"))


def test_a_body_that_drips_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.monotonic", lambda: 100.0)
    assert body(Body(b"1"), until=100.0) == b"1"
    with pytest.raises(TimeoutError):
        body(Body(b"1"), until=99.9)
