"""SkyPilot's catalogues row by row: their columns, their versions and their ages."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from trmcloud.adapters.prices.downloads import DownloadError, _body
from trmcloud.providers.skypilot import offers as sky_offers
from trmcloud.providers.skypilot.offers import (
    BASES,
    CHANGES,
    CatalogueError,
    ParsedCatalogue,
    read_catalogue,
    read_cloud,
)

# -- SkyPilot's catalogues, row by row, in the columns that its v8 files have -------------------


DAY = "2026-11-18"
COLUMNS = (
    "InstanceType", "vCPUs", "MemoryGiB", "AcceleratorName", "AcceleratorCount", "GpuInfo",
    "Price", "SpotPrice", "Region", "AvailabilityZone",
)  # fmt: skip
H100 = {
    "InstanceType": "p5.48xlarge", "vCPUs": "192", "MemoryGiB": "2048.0",
    "AcceleratorName": "H100", "AcceleratorCount": "8.0", "Price": "55.04", "SpotPrice": "14.5",
    "Region": "us-east-1", "AvailabilityZone": "us-east-1a",
}  # fmt: skip


def text(*rows: dict[str, str]) -> str:
    lines = [",".join(f'"{row.get(name, "")}"' for name in COLUMNS) for row in rows]
    return "\n".join([",".join(COLUMNS), *lines, ""])


def read(*rows: dict[str, str], cloud: str = "aws") -> ParsedCatalogue:
    return read_catalogue(cloud, text(*rows), DAY)


def one(cloud: str = "aws", **changes: str) -> dict[str, str]:
    (row,) = read({**H100, **changes}, cloud=cloud).rows
    return row


def none(cloud: str = "aws", **changes: str) -> int:
    """How many were doubted of a row that becomes no offer."""
    found = read({**H100, **changes}, cloud=cloud)
    assert found.rows == []
    return found.doubted


def test_a_row_is_an_offer() -> None:
    assert one() == {
        "sku": "H100-SXM", "gpus": "8", "provider": "aws", "region": "us-east-1",
        "instance": "p5.48xlarge", "usd_per_hour": "55.04", "spot_usd_per_hour": "14.5",
        "as_of": DAY, "source": "skypilot-catalog", "vcpus": "192", "ram_gb": "2048", "tier": "",
    }  # fmt: skip


# -- what is none ------------------------------------------------------------------------------


@pytest.mark.parametrize("head", ["<html>", '{"a": 1}', "[]", "\ufeff \t\r\n<HTML>", "  {"])
def test_what_is_no_table(head: str) -> None:
    with pytest.raises(CatalogueError, match="the answer is not a table"):
        read_catalogue("aws", head + text(H100), DAY)


@pytest.mark.parametrize(
    "missing", ["InstanceType", "AcceleratorName", "AcceleratorCount", "Price", "SpotPrice",
                "Region"],
)  # fmt: skip
def test_a_table_without_a_column_that_is_needed(missing: str) -> None:
    with pytest.raises(CatalogueError, match=f"it has no column {missing}$"):
        read_catalogue("aws", text(H100).replace(missing, "other", 1), DAY)


def test_the_first_column_that_is_missing_is_named() -> None:
    with pytest.raises(CatalogueError, match=r"no column AcceleratorCount$"):
        read_catalogue("aws", "InstanceType,AcceleratorName,Price\n", DAY)


def test_a_column_that_stands_twice_and_what_is_no_csv() -> None:
    with pytest.raises(CatalogueError, match="a column occurs twice"):
        read_catalogue("aws", text(H100).replace("GpuInfo", "vCPUs"), DAY)
    for odd in ('"x"y\n', '"' + "x" * 200_000 + '",1\n'):
        with pytest.raises(CatalogueError, match="cannot be read: "):
            read_catalogue("aws", text(H100) + odd, DAY)


def test_more_lines_than_any_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sky_offers, "MOST_LINES", 2)
    assert len(read(H100, {**H100, "Region": "r2"}).rows) == 2
    with pytest.raises(CatalogueError, match="more than 2 lines"):
        read(H100, H100, H100)


def test_a_line_with_too_few_or_too_many_cells_is_no_row() -> None:
    for odd in ("a,b\n", "," * 20 + "\n"):
        assert len(read_catalogue("aws", text(H100) + odd, DAY).rows) == 1


# -- what is sold ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "count", ["0", "", "0.5", "1.5", "65", "1e9", "-1", "x", "NaN", "Infinity"]
)
def test_what_is_no_whole_count_of_gpus_is_not_for_us(count: str) -> None:
    assert none(AcceleratorCount=count) == 0


@pytest.mark.parametrize(("count", "gpus"), [("1", "1"), ("1.0", "1"), ("64", "64"), ("8e0", "8")])
def test_whole_counts(count: str, gpus: str) -> None:
    assert one(AcceleratorCount=count, Price="64", SpotPrice="")["gpus"] == gpus


@pytest.mark.parametrize("name", ["", "V100", "T4", "Trainium"])
def test_what_is_none_of_our_hardware_is_passed_over(name: str) -> None:
    assert none(AcceleratorName=name) == 0


@pytest.mark.parametrize(
    ("rate", "spot", "shown"),
    [
        ("55.04", "", ("55.04", "")), ("", "14.5", ("", "14.5")), ("0", "14.5", ("", "14.5")),
        ("55.04", "55.04", ("55.04", "")), ("55.04", "0.0", ("55.04", "")),
        ("800", "0.08", ("800", "0.08")), ("10.1234567", "", ("10.123457", "")),
        ("100", "", ("100", "")), ("1e2", "", ("100", "")),
    ],
)  # fmt: skip
def test_prices(rate: str, spot: str, shown: tuple[str, str]) -> None:
    row = one(Price=rate, SpotPrice=spot)
    assert (row["usd_per_hour"], row["spot_usd_per_hour"]) == shown


@pytest.mark.parametrize(("rate", "spot"), [("", ""), ("0", "0"), ("0.00", "")])
def test_what_has_no_price_is_not_for_sale(rate: str, spot: str) -> None:
    assert none(Price=rate, SpotPrice=spot) == 0


@pytest.mark.parametrize(
    "price",
    ["800.01", "0.079", "-55", "NaN", "Infinity", "1e400", "1e-400", "x", "[55]", "55,04", "sNaN"],
)
def test_a_price_that_nobody_asks_is_doubted(price: str) -> None:
    assert none(Price=price) == 1
    assert none(SpotPrice=price) == 1


@pytest.mark.parametrize(
    "name", ["", "a b", "../x", "x" * 81, "-x", "a\u202eb", "a/b", "\x1b[2Ja", "$(reboot)"]
)
def test_a_name_that_is_odd_is_doubted(name: str) -> None:
    assert none(InstanceType=name) == 1
    assert none(Region=name) == 1


def test_names_that_are_plain() -> None:
    assert one(InstanceType="x" * 80, Region="a.b_c+d-E1")["region"] == "a.b_c+d-E1"


@pytest.mark.parametrize(
    ("cell", "size"),
    [("", ""), ("0", ""), ("-1", ""), ("999999", "999999"), ("1000000", ""), ("x", ""),
     ("NaN", ""), ("Infinity", ""), ("0.5", "0.5"), ("192.0", "192")],
)  # fmt: skip
def test_sizes_are_shown_where_they_can_be(cell: str, size: str) -> None:
    row = one(vCPUs=cell, MemoryGiB=cell)
    assert (row["vcpus"], row["ram_gb"]) == (size, size)


def test_sizes_need_not_stand_there() -> None:
    head = "InstanceType,AcceleratorName,AcceleratorCount,Price,SpotPrice,Region\n"
    (row,) = read_catalogue("aws", head + "p5,H100,8,55.04,,us-east-1\n", DAY).rows
    assert (row["vcpus"], row["ram_gb"]) == ("", "")


# -- zones of a region -------------------------------------------------------------------------


def test_of_two_zones_the_dearest_rate_and_the_cheapest_spot() -> None:
    def merged(*prices: tuple[str, str]) -> tuple[str, str]:
        rows = [{**H100, "Price": rate, "SpotPrice": spot} for rate, spot in prices]
        (row,) = read(*rows).rows
        return row["usd_per_hour"], row["spot_usd_per_hour"]

    assert merged(("55", "14"), ("60", "9"), ("58", "20")) == ("60", "9")
    assert merged(("9.5", "9"), ("10.5", "8.5")) == ("10.5", "8.5"), "as numbers, not as text"
    assert merged(("55", ""), ("", "9")) == ("55", "9")
    assert merged(("55", ""), ("60", "")) == ("60", "")
    assert merged(("", "9"), ("", "10")) == ("", "9")


@pytest.mark.parametrize(
    "change", [{"Region": "us-west-2"}, {"InstanceType": "p5e"}, {"AcceleratorName": "H200"},
               {"AcceleratorCount": "4"}],
)  # fmt: skip
def test_what_differs_in_what_is_sold_stays_apart(change: dict[str, str]) -> None:
    assert len(read(H100, {**H100, **change}).rows) == 2


# -- clouds of their own kind ------------------------------------------------------------------


def test_runpod_has_one_price_for_all_places_and_no_spot() -> None:
    row = one("runpod", InstanceType="8x_H100_SECURE", Region="US", SpotPrice="14.5")
    assert row["sku"] == "H100-PCIe"
    assert (row["region"], row["instance"], row["tier"]) == ("any", "8x_H100-PCIe_SECURE", "secure")
    assert (row["usd_per_hour"], row["spot_usd_per_hour"]) == ("55.04", "")
    assert none("runpod", Price="") == 0
    assert one("runpod", AcceleratorName="H100-SXM")["sku"] == "H100-SXM"
    assert one("runpod", AcceleratorName="A100-80GB")["sku"] == "A100-80GB-PCIe"


def test_a_place_that_nobody_names_may_be_odd() -> None:
    assert one("runpod", Region="a b")["region"] == "any"


@pytest.mark.parametrize(
    ("cloud", "instance", "name", "sku"),
    [
        ("azure", "Standard_NC40ads", "H100", "H100-NVL"),
        ("azure", "Standard_NC24ads", "A100-80GB", "A100-80GB-PCIe"),
        ("azure", "Standard_NC8", "L4", "L4"),
        ("azure", "Standard_ND96", "H100", "H100-SXM"),
        ("aws", "Standard_NC40ads", "H100", "H100-SXM"),
        ("lambda", "gpu_1x_h100_PCIe", "H100", "H100-PCIe"),
        ("lambda", "gpu_1x_a100_pcie", "A100", "A100-40GB"),
        ("lambda", "gpu_8x_h100_sxm5", "H100", "H100-SXM"),
    ],
)
def test_what_a_name_means_at_each_cloud(cloud: str, instance: str, name: str, sku: str) -> None:
    assert one(cloud, InstanceType=instance, AcceleratorName=name)["sku"] == sku


def vast(chip: str, mib: Any = None, count: str = "8") -> str | None:
    info = "" if mib is None else f"{{'Gpus': [{{'MemoryInfo': {{'SizeInMiB': {mib}}}}}]}}"
    row = {**H100, "InstanceType": f"8x-{chip}-32-64", "AcceleratorName": "x", "GpuInfo": info}
    rows = read({**row, "AcceleratorCount": count}, cloud="vast").rows
    return rows[0]["sku"] if rows else None


def test_vast_names_the_chip_in_its_instances() -> None:
    assert vast("H100_SXM") == "H100-SXM"
    assert vast("RTX_4090") == "RTX4090"
    assert vast("TESLA_V100") is None
    assert vast("") is None
    whole = 8 * 81_920
    assert vast("A100_SXM4", whole) == "A100-80GB-SXM"
    assert vast("A100_PCIE", whole) == "A100-80GB-PCIe"
    assert vast("A100_SXM4", whole // 2) == "A100-40GB"
    assert vast("A100_X", whole) is None


def test_a_chips_memory_is_its_share_of_the_machines() -> None:
    """More than 60 GiB each is the one of 80 GB."""
    for gib, sku in ((60, "A100-40GB"), (61, "A100-80GB-SXM")):
        assert vast("A100_SXM4", 8 * gib * 1024) == sku
        assert vast("A100_SXM4", gib * 1024, "1") == sku
    assert vast("A100_SXM4") == "A100-40GB", "where it is not told, the smaller"
    assert vast("A100_SXM4", "'x'") == "A100-40GB"
    assert vast("A100_SXM4", 81_920, "0.5") is None


# -- Google's hosts ----------------------------------------------------------------------------
GPU = {
    "AcceleratorName": "L4", "AcceleratorCount": "1", "Price": "0.56", "SpotPrice": "0.2",
    "Region": "us-central1", "AvailabilityZone": "us-central1-a",
}  # fmt: skip
HOST = {
    "InstanceType": "g2-standard-8", "vCPUs": "8", "MemoryGiB": "32", "Price": "0.29",
    "SpotPrice": "0.1", "Region": "us-central1", "AvailabilityZone": "us-central1-a",
}  # fmt: skip


def google(*rows: dict[str, str]) -> list[tuple[str, ...]]:
    names = ("sku", "gpus", "instance", "usd_per_hour", "spot_usd_per_hour", "vcpus", "ram_gb")
    return [tuple(row[name] for name in names) for row in read(*rows, cloud="gcp").rows]


def test_a_gpu_is_sold_with_the_cheapest_host_of_its_zone() -> None:
    small = {**HOST, "InstanceType": "g2-standard-4", "vCPUs": "4", "Price": "0.15",
             "SpotPrice": "0.3"}  # fmt: skip
    offer = ("L4", "1", "g2-standard-4", "0.71", "0.5", "4", "32")
    for hosts in ((HOST, small), (small, HOST)):
        assert google(*hosts, GPU) == [offer]
        assert google(GPU, *hosts) == [offer]
    big = {**HOST, "Price": "10.5", "InstanceType": "g2-standard-12"}
    nine = {**HOST, "Price": "9.5", "InstanceType": "g2-standard-16"}
    assert google(big, nine, GPU)[0][2] == "g2-standard-16", "as numbers, not as text"


@pytest.mark.parametrize(
    "host",
    [
        {"AvailabilityZone": "us-central1-b"}, {"InstanceType": "g2-standard-24"},
        {"InstanceType": "n1-standard-8"}, {"Price": ""}, {"Price": "x"}, {"SpotPrice": "x"},
    ],
)  # fmt: skip
def test_without_a_host_that_fits_it_is_not_to_be_had(host: dict[str, str]) -> None:
    assert google(GPU, {**HOST, **host}) == []


def test_a_sum_without_one_of_its_parts_is_none() -> None:
    assert google({**GPU, "SpotPrice": ""}, HOST)[0][3:5] == ("0.85", "")
    assert google(GPU, {**HOST, "SpotPrice": ""})[0][3:5] == ("0.85", "")
    assert google({**GPU, "Price": ""}, HOST) == []


@pytest.mark.parametrize(
    ("name", "count", "host", "price"),
    [
        ("L4", "2", "g2-standard-24", "2"), ("L4", "4", "g2-standard-48", "4"),
        ("L4", "8", "g2-standard-96", "8"), ("H100", "8", "a3-highgpu-8g", "80"),
        ("H200", "8", "a3-ultragpu-8g", "80"), ("A100", "4", "a2-highgpu-4g", "8"),
        ("A100-80GB", "2", "a2-ultragpu-2g", "8"), ("B200", "8", "a4-highgpu-8g", "80"),
        ("L4", "1", "g2-standard-4", "1"), ("L4", "1", "g2-standard-12", "1"),
        ("L4", "1", "g2-standard-16", "1"), ("L4", "1", "g2-standard-32", "1"),
    ],
)  # fmt: skip
def test_which_host_carries_which_gpus(name: str, count: str, host: str, price: str) -> None:
    gpu = {**GPU, "AcceleratorName": name, "AcceleratorCount": count, "Price": price}
    assert [row[1:3] for row in google(gpu, {**HOST, "InstanceType": host})] == [(count, host)]


def test_what_cannot_be_combined_costs_no_other_row() -> None:
    odd = [
        {**GPU, "AcceleratorCount": "0.5"}, {**GPU, "InstanceType": "whole"},
        {**GPU, "AcceleratorName": "V100"}, {**GPU, "AcceleratorCount": "3"},
    ]  # fmt: skip
    assert len(google(*odd, HOST)) == 0
    assert len(google(*odd, GPU, HOST)) == 1


# -- at the edges ------------------------------------------------------------------------------


def test_the_most_lines_of_any_catalogue() -> None:
    assert sky_offers.MOST_LINES == 400_000


def test_a_table_may_begin_with_empty_space() -> None:
    with pytest.raises(CatalogueError, match="not a table"):
        read_catalogue("aws", " " * 199 + "<", DAY)
    with pytest.raises(CatalogueError, match="no column InstanceType"):
        read_catalogue("aws", " " * 200 + "<", DAY)
    with pytest.raises(CatalogueError, match="no column InstanceType"):
        read_catalogue("aws", "", DAY)


@pytest.mark.parametrize("more", ["", ",x,y"])
def test_a_sound_beginning_of_a_line_is_no_row(more: str) -> None:
    line = "p5,192,2048,H100,8,,55.04,14.5,us-east-1"
    whole = f"{','.join(COLUMNS)}\n{line},us-east-1a\n"
    assert len(read_catalogue("aws", whole, DAY).rows) == 1
    assert read_catalogue("aws", f"{','.join(COLUMNS)}\n{line}{more}\n", DAY).rows == []


def test_what_else_is_told_of_two_zones_is_the_firsts() -> None:
    (row,) = read({**H100, "vCPUs": "1"}, {**H100, "vCPUs": "2"}).rows
    assert row["vcpus"] == "1"


def test_vasts_smallest_share_and_its_cards() -> None:
    assert vast("A100_PCIE", 8 * 40_960) == "A100-40GB"
    assert vast("A100_SXM4", 8 * 61_450) == "A100-80GB-SXM", "60.01 GiB"
    assert none("vast", InstanceType="8x-H100_SXM-32-64", AcceleratorName="") == 0


# -- catalogue ages -----------------------------------------------------------------------------
# Which version of a catalogue is read, how old it is, and what is said where nobody tells.


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
        found = self.files.get(url, DownloadError("HTTP 404", 404))
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
    (DownloadError("HTTP 403", 403), "HTTP 403"),
    (b"no json", "the answer has no date"),
    (b"[" * 200_000, "the answer has no date"),
    ([], "the answer has no date"),
    ({}, "the answer has no date"),
    ([{}], "the answer has no date"),
    ([{"commit": None}], "the answer has no date"),
    ([{"commit": {"committer": {"date": 5}}}], "the answer has no date"),
    ("yesterday", "the answer has no date"),
    ("0001-01-01T00:00:00Z", "its date is in the future"),
    ("1970-01-01T00:00:00Z", "its date is in the future"),
    ("2026-11-19T11:06:41Z", "its date is in the future"),
]


@pytest.mark.parametrize(("told", "why"), UNTOLD)
def test_what_is_made_by_hand_is_not_read_without_its_age(net: Net, told: Any, why: str) -> None:
    for version in ("v8", "v9"):
        net.changed("lambda", version, told)
        net.holds("lambda", version, ROWS)
    says = f"lambda: not read: the date of its SkyPilot catalogue is not known ({why})"
    assert net.read("lambda") == (0, says)


def test_what_is_made_several_times_a_day_is_taken_for_todays(net: Net) -> None:
    net.changed("aws", "v8", DownloadError("HTTP 403", 403))
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
    net.holds("aws", "v8", DownloadError("the first", 403))
    net.holds("aws", "v8", DownloadError("the second", 403), BASES[1])
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
        (b"\xff\xfe", "aws: not read: the answer is not text"),
        ("<html>", "aws: not read: the answer is not a table"),
        (HEAD, "aws: no offers of known GPUs"),
        (HEAD + "p5,H100,8,NaN,,r\n", "aws: no offers of known GPUs; 1 rows not plausible"),
        (
            ROWS + "p6,H100,8,NaN,,r\n",
            "aws: 3 offers of 2026-11-18 (SkyPilot's v8); 1 rows not plausible",
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
    with pytest.raises(DownloadError, match="larger than 2 MiB"):
        body(said, 2 << 20)
    assert said.read == 0, "none of it was read"
    unsaid = Body(b"1" * (2 << 20), b"2", b"3")
    with pytest.raises(DownloadError, match="larger than 2 MiB"):
        body(unsaid, 2 << 20)
    assert unsaid.read == 2
    assert len(body(Body(b"1" * (2 << 20), told=str(2 << 20)), 2 << 20)) == 2 << 20


def test_a_body_that_breaks_off_is_none() -> None:
    with pytest.raises(DownloadError, match="the connection ended before the answer was complete"):
        body(Body(b"1234", told="5"))


def test_a_body_that_drips_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.monotonic", lambda: 100.0)
    assert body(Body(b"1"), until=100.0) == b"1"
    with pytest.raises(TimeoutError):
        body(Body(b"1"), until=99.9)
