"""Prices without any account: SkyPilot's public catalogues, ``vms.csv`` of each cloud, as offers.

What is hostile or odd in a row costs that row alone; a file that is no catalogue is refused whole.

A catalogue does not say of which day it is; who reads it would take what was written down by hand
months ago for a price of today. So the repository that holds it is asked when it last changed.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timezone
from decimal import Decimal, InvalidOperation
from typing import NamedTuple

from trmcloud.adapters.prices.downloads import DownloadError, fetch
from trmcloud.core.catalog.hardware import GPUS, MAX_GPUS
from trmcloud.core.catalog.offers import ANYWHERE, MAX_USD_PER_GPU_HOUR, MIN_USD_PER_GPU_HOUR
from trmcloud.core.clock import utc_day
from trmcloud.providers.skypilot.traits import CLOUDS, RUNPOD_BY_SKYPILOT

PROVIDERS: Mapping[str, str] = {
    cloud: "runpod" if name == RUNPOD_BY_SKYPILOT else name for name, cloud in CLOUDS.items()
}
"""Our name of each cloud that has a catalogue."""
SOURCE = "skypilot-catalog"
MOST_LINES = 400_000
NEEDED = ("InstanceType", "AcceleratorName", "AcceleratorCount", "Price", "SpotPrice", "Region")

#: What SkyPilot's names mean where nothing else is said: the SXM boards.
_NAMES: Mapping[str, str] = {
    "B200": "B200",
    "H200": "H200",
    "H200-SXM": "H200",
    "H100": "H100-SXM",
    "H100-SXM": "H100-SXM",
    "H100-NVL": "H100-NVL",
    "A100-80GB": "A100-80GB-SXM",
    "A100-80GB-SXM": "A100-80GB-SXM",
    "A100": "A100-40GB",
    "L40S": "L40S",
    "L4": "L4",
    "A10G": "A10G",
    "RTX4090": "RTX4090",
    "RTX3090": "RTX3090",
}
_RUNPOD_NAMES = {"H100": "H100-PCIe", "A100-80GB": "A100-80GB-PCIe"}
#: Azure's NC machines carry cards, its ND machines boards.
_AZURE_CARDS = {"A100-80GB": "A100-80GB-PCIe", "H100": "H100-NVL"}
#: Vast's instances name the chip; its own column does not tell cards from boards.
_VAST_CHIPS = {
    "H100_SXM": "H100-SXM",
    "H100_PCIE": "H100-PCIe",
    "H100_NVL": "H100-NVL",
    "H200": "H200",
    "B200": "B200",
    "L40S": "L40S",
    "L4": "L4",
    "RTX_4090": "RTX4090",
    "RTX_3090": "RTX3090",
}
_VAST_A100 = {("A100_SXM4", 80): "A100-80GB-SXM", ("A100_PCIE", 80): "A100-80GB-PCIe",
              ("A100_SXM4", 40): "A100-40GB", ("A100_PCIE", 40): "A100-40GB"}  # fmt: skip
#: Google sells GPU and host apart, and each GPU with hosts of one family alone.
_GCP_HOSTS = {
    "A100": r"a2-highgpu-{n}g",
    "A100-80GB": r"a2-ultragpu-{n}g",
    "H100": r"a3-highgpu-{n}g",
    "H200": r"a3-ultragpu-{n}g",
    "B200": r"a4-highgpu-{n}g",
}
_GCP_L4_HOSTS = {1: ("4", "8", "12", "16", "32"), 2: ("24",), 4: ("48",), 8: ("96",)}

_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,79}")
_MEMORY = re.compile(r"'SizeInMiB': ([0-9]{1,9})")

Line = Mapping[str, str]
Row = dict[str, str]


class CatalogueError(Exception):
    """Why, in a few words of one line."""


class ParsedCatalogue(NamedTuple):
    """Rows by the names of ``prices.COLUMNS``, and how many were not to be believed."""

    rows: list[Row]
    doubted: int


def read_catalogue(cloud: str, text: str, as_of: str) -> ParsedCatalogue:
    """Offers of ``cloud`` as of a day; the dearest price of a region, the cheapest spot zone.

    Raises:
        CatalogueError: the text is none.
    """
    lines: Iterable[Line] = _lines(text)
    if cloud == "gcp":
        lines = _with_hosts(lines)
    best: dict[tuple[str, ...], Row] = {}
    doubted = 0
    for line in lines:
        try:
            row = _row(cloud, line, as_of)
        except ValueError:
            doubted += 1
            continue
        if row is None:
            continue
        key = (row["sku"], row["gpus"], row["region"], row["instance"])
        best[key] = _merged(best[key], row) if key in best else row
    return ParsedCatalogue(list(best.values()), doubted)


def _lines(text: str) -> Iterator[Line]:
    head = text[:200].lstrip("\ufeff \t\r\n").lower()
    if head.startswith(("<", "{", "[")):
        raise CatalogueError("the answer is not a table")
    try:
        reader = csv.DictReader(text.splitlines(), strict=True)
        names = reader.fieldnames or []
        missing = [name for name in NEEDED if name not in names]
        if missing:
            raise CatalogueError(f"it has no column {missing[0]}")
        if len(set(names)) < len(names):
            raise CatalogueError("a column occurs twice")
        for number, line in enumerate(reader):
            if number >= MOST_LINES:
                raise CatalogueError(f"more than {MOST_LINES:,} lines")
            # A line with too few or too many cells is no row.
            if None not in line and None not in line.values():
                yield line
    except csv.Error as error:
        raise CatalogueError(f"it cannot be read: {error}") from None


def _row(cloud: str, line: Line, as_of: str) -> Row | None:
    """None for what is none of our hardware, or not for sale.

    Raises:
        ValueError: it says that it is, and cannot be true.
    """
    instance = line["InstanceType"]
    sku = _sku(cloud, instance, line)
    if sku is None or sku not in GPUS:
        return None
    gpus = _count(line["AcceleratorCount"])
    if gpus is None:
        return None
    rate, spot = _dollars(line["Price"], gpus), _dollars(line["SpotPrice"], gpus)
    # RunPod has no spot any more, and lists it at the price on demand. Elsewhere that is the zone
    # that has none to spare; it is dearer than any other.
    if cloud == "runpod" or spot == rate:
        spot = None
    if rate is None and spot is None:
        return None
    region = line["Region"]
    if cloud in ("runpod", "vast"):
        # One price for all places of the first; the second's are no names that one could ask for.
        region = ANYWHERE
    if not _PLAIN.fullmatch(instance) or not _PLAIN.fullmatch(region):
        raise ValueError("an unexpected name")
    return {
        "sku": sku,
        "gpus": str(gpus),
        "provider": PROVIDERS[cloud],
        "region": region,
        "instance": f"{gpus}x_{sku}_SECURE" if cloud == "runpod" else instance,
        "usd_per_hour": _text(rate),
        "spot_usd_per_hour": _text(spot),
        "as_of": as_of,
        "source": SOURCE,
        "vcpus": _size(line.get("vCPUs", "")),
        "ram_gb": _size(line.get("MemoryGiB", "")),
        "tier": "secure" if cloud == "runpod" else "",
    }


def _sku(cloud: str, instance: str, line: Line) -> str | None:
    name = line["AcceleratorName"]
    if not name:
        return None
    if cloud == "vast":
        return _vast_sku(instance, line)
    if cloud == "runpod":
        return _RUNPOD_NAMES.get(name) or _NAMES.get(name)
    if cloud == "azure" and instance.startswith("Standard_NC"):
        return _AZURE_CARDS.get(name) or _NAMES.get(name)
    if "pcie" in instance.lower() and name == "H100":
        return "H100-PCIe"
    return _NAMES.get(name)


def _vast_sku(instance: str, line: Line) -> str | None:
    _, _, rest = instance.partition("x-")
    chip = rest.partition("-")[0]
    if chip.startswith("A100"):
        found = _MEMORY.search(line.get("GpuInfo", ""))
        count = _count(line["AcceleratorCount"]) or 1
        each_gib = int(found[1]) / count / 1024 if found else 0.0
        return _VAST_A100.get((chip, 80 if each_gib > 60 else 40))
    return _VAST_CHIPS.get(chip)


def _with_hosts(lines: Iterable[Line]) -> list[Line]:
    """Google's GPUs with the cheapest host that carries so many of them, zone by zone."""
    hosts: dict[tuple[str, str], Line] = {}
    gpus = []
    for line in lines:
        if line["AcceleratorName"]:
            gpus.append(line)
        elif line["Price"]:
            hosts[line["InstanceType"], line.get("AvailabilityZone", "")] = line
    whole = []
    for line in gpus:
        count = _count(line["AcceleratorCount"])
        if line["InstanceType"] or count is None:
            continue
        zone = line.get("AvailabilityZone", "")
        fitting = [hosts[name, zone] for name in _gcp_hosts(line["AcceleratorName"], count)
                   if (name, zone) in hosts]  # fmt: skip
        sums = [made for host in fitting if (made := _together(line, host)) is not None]
        if sums:
            whole.append(min(sums, key=lambda made: Decimal(made["Price"])))
    return whole


def _gcp_hosts(name: str, count: int) -> list[str]:
    if name == "L4":
        return [f"g2-standard-{size}" for size in _GCP_L4_HOSTS.get(count, ())]
    return [_GCP_HOSTS[name].format(n=count)] if name in _GCP_HOSTS else []


def _together(gpu: Line, host: Line) -> Line | None:
    try:
        rate, spot = (_sum(gpu[name], host[name]) for name in ("Price", "SpotPrice"))
    except InvalidOperation:
        return None
    if not rate:
        return None
    shown = {name: host.get(name, "") for name in ("InstanceType", "vCPUs", "MemoryGiB")}
    return {**gpu, **shown, "Price": rate, "SpotPrice": spot}


def _sum(first: str, second: str) -> str:
    return str(Decimal(first) + Decimal(second)) if first and second else ""


def _count(text: str) -> int | None:
    """Whole GPUs; None for shares of one, and for none."""
    try:
        count = Decimal(text or "0")
    except InvalidOperation:
        return None
    if not count.is_finite() or not 1 <= count <= MAX_GPUS or count != int(count):
        return None
    return int(count)


def _dollars(text: str, gpus: int) -> Decimal | None:
    """None where nothing stands; nothing is also what some catalogues write as 0.

    Raises:
        ValueError: no price that can be.
    """
    if not text:
        return None
    try:
        amount = Decimal(text)
    except InvalidOperation:
        raise ValueError(text) from None
    if not amount:
        return None
    if not amount.is_finite() or not (
        MIN_USD_PER_GPU_HOUR.amount <= amount / gpus <= MAX_USD_PER_GPU_HOUR
    ):
        raise ValueError(text)
    return amount


def _text(amount: Decimal | None) -> str:
    return "" if amount is None else f"{amount:.6f}".rstrip("0").rstrip(".")


def _size(text: str) -> str:
    """vCPUs or GiB, which are shown and never reckoned with: left out where they are odd."""
    try:
        size = Decimal(text or "0")
    except InvalidOperation:
        return ""
    return _text(size) if size.is_finite() and 0 < size < 1_000_000 else ""


def _merged(one: Row, other: Row) -> Row:
    """Two zones of a region: what is dearest on demand, and cheapest as spot."""
    rates = [row["usd_per_hour"] for row in (one, other) if row["usd_per_hour"]]
    spots = [row["spot_usd_per_hour"] for row in (one, other) if row["spot_usd_per_hour"]]
    return {
        **one,
        "usd_per_hour": max(rates, key=Decimal, default=""),
        "spot_usd_per_hour": min(spots, key=Decimal, default=""),
    }


# -- catalogue ages ------------------------------------------------------------

ENV_CATALOGUES = "TRMCLOUD_SKY_CATALOGS"
"""A base address instead of SkyPilot's two; below it lie v8/aws/vms.csv and its likes."""
ENV_CHANGES = "TRMCLOUD_SKY_CATALOG_CHANGES"
"""An address instead of GitHub's list of commits."""

BASES = (
    "https://raw.githubusercontent.com/skypilot-org/skypilot-catalog/master/catalogs",
    "https://skypilot-catalog.s3.us-east-1.amazonaws.com/catalogs",
)
"""As in SkyPilot 0.14.1 (``sky/skylet/constants.py``): the second where the first refuses."""
CHANGES = "https://api.github.com/repos/skypilot-org/skypilot-catalog/commits"
VERSIONS = ("v8", "v9")
"""The versions of the catalogue that 0.14.1 reads, and that its next versions will read."""
MOST_BYTES = 32 << 20
MOST_CHANGES_BYTES = 1 << 20
WITHIN_S = 60.0
CHANGES_WITHIN_S = 10.0
_DAY_S = 86_400.0

BY_MACHINE = frozenset({"aws", "gcp", "runpod", "verda"})
"""Their catalogues are made anew several times a day; the others are changed by hand, or seldom."""


class _Version(NamedTuple):
    name: str
    changed_at: float | None
    """Epoch seconds, None where no source says."""
    why: str
    """Why not."""


def read_cloud(cloud: str, environ: Mapping[str, str], now: float) -> tuple[list[Row], list[str]]:
    """(rows by the names of ``prices.COLUMNS``, one line about them): the newest version of one
    cloud's catalogue. Nothing raises: what went wrong is the line."""
    name = PROVIDERS[cloud]
    version = max(
        (_version(cloud, v, environ, now) for v in VERSIONS),
        key=lambda v: v.changed_at or 0.0,
    )
    if version.changed_at is None and cloud not in BY_MACHINE:
        why = f"the date of its SkyPilot catalogue is not known ({version.why})"
        return [], [f"{name}: not read: {why}"]
    at = now if version.changed_at is None else version.changed_at
    as_of = utc_day(at)
    try:
        text = _catalogue(cloud, version.name, environ).decode("utf-8")
        found = read_catalogue(cloud, text, as_of)
    except UnicodeDecodeError:
        return [], [f"{name}: not read: the answer is not text"]
    except (CatalogueError, DownloadError) as error:
        return [], [f"{name}: not read: {error}"]
    doubted = f"; {found.doubted} rows not plausible" if found.doubted else ""
    if not found.rows:
        return [], [f"{name}: no offers of known GPUs{doubted}"]
    offers = sum(bool(row["usd_per_hour"]) + bool(row["spot_usd_per_hour"]) for row in found.rows)
    aged = int((now - (version.changed_at or now)) // _DAY_S)
    age = f", {aged} day{'s' * (aged > 1)} ago" if aged > 0 else ""
    said = f"{name}: {offers} offers of {as_of}{age} (SkyPilot's {version.name}){doubted}"
    return found.rows, [said]


def _catalogue(cloud: str, version: str, environ: Mapping[str, str]) -> bytes:
    """
    Raises:
        DownloadError: in the words of the first address.
    """
    own = environ.get(ENV_CATALOGUES, "").strip().rstrip("/")
    first: DownloadError | None = None
    for base in (own,) if own else BASES:
        try:
            return fetch(
                f"{base}/{version}/{cloud}/vms.csv", most_bytes=MOST_BYTES, within_s=WITHIN_S
            )
        except DownloadError as error:
            first = first or error
    assert first is not None
    raise first


def _version(cloud: str, version: str, environ: Mapping[str, str], now: float) -> _Version:
    """A catalogue, and when the newest commit touched it by GitHub's list of them."""
    base = environ.get(ENV_CHANGES, "").strip() or CHANGES
    url = f"{base}?path=catalogs/{version}/{cloud}/vms.csv&per_page=1"
    try:
        answer = fetch(url, most_bytes=MOST_CHANGES_BYTES, within_s=CHANGES_WITHIN_S)
        said = json.loads(answer)[0]["commit"]["committer"]["date"]
        at = datetime.fromisoformat(said.replace("Z", "+00:00"))
        changed_at = at.replace(tzinfo=at.tzinfo or timezone.utc).timestamp()
    except DownloadError as error:
        return _Version(version, None, str(error))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return _Version(version, None, "the answer has no date")
    if not 0 < changed_at <= now + _DAY_S:
        return _Version(version, None, "its date is in the future")
    return _Version(version, changed_at, "")
