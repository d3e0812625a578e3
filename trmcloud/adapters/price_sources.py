"""Live prices from the catalogues that a SkyPilot on this machine keeps.

Rows come back by the names of ``prices.COLUMNS``. What cannot be read is a note, not an error.
"""

from __future__ import annotations

import csv
import time
from pathlib import Path
from typing import Iterable, Mapping

from trmcloud.core.hardware import GPUS

#: SkyPilot's names; "H100" and "A100-80GB" mean PCIe at some clouds and SXM at the others.
SKY_NAMES: Mapping[str, str] = {
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
_PCIE_AT: Mapping[str, Mapping[str, str]] = {
    "runpod": {"H100": "H100-PCIe", "A100-80GB": "A100-80GB-PCIe"},
    "azure": {"A100-80GB": "A100-80GB-PCIe", "H100": "H100-NVL"},
}
_SKY_PROVIDERS = {"vast": "vast-ai", "do": "digitalocean"}


def catalogues(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("HOME", "/")) / ".sky" / "catalogs"


def read_skypilot(folder: Path) -> tuple[list[dict[str, str]], list[str]]:
    """Offers of ``vms.csv`` files under SkyPilot's catalogue folder, the newest version of each."""
    found: dict[str, Path] = {}
    for path in sorted(folder.glob("*/*/vms.csv")):
        found[path.parent.name] = path
    rows: list[dict[str, str]] = []
    notes = []
    for cloud, path in found.items():
        as_of = time.strftime("%Y-%m-%d", time.gmtime(path.stat().st_mtime))
        try:
            with path.open(encoding="utf-8", newline="") as lines:
                mine = list(_sky_rows(cloud, csv.DictReader(lines), as_of))
        except (OSError, ValueError, KeyError, csv.Error) as error:
            notes.append(f"skypilot {cloud}: cannot be read: {error}")
            continue
        rows += mine
        notes.append(f"skypilot {cloud}: {len(mine)} offers of {as_of}")
    return rows, notes


def _sky_rows(
    cloud: str, lines: Iterable[Mapping[str, str]], as_of: str
) -> Iterable[dict[str, str]]:
    provider = _SKY_PROVIDERS.get(cloud, cloud)
    best: dict[tuple[str, str, str, str], dict[str, str]] = {}
    for line in lines:
        name = line.get("AcceleratorName") or ""
        sku = _PCIE_AT.get(cloud, {}).get(name) or SKY_NAMES.get(name)
        if "pcie" in (line.get("InstanceType") or "").lower() and sku == "H100-SXM":
            sku = "H100-PCIe"
        count = float(line.get("AcceleratorCount") or 0)
        if sku is None or sku not in GPUS or count not in range(1, 65):
            continue
        price, spot = line.get("Price") or "", line.get("SpotPrice") or ""
        if cloud == "runpod" or spot == price:
            spot = ""
        if not price and not spot:
            continue
        row = {
            "sku": sku,
            "gpus": str(int(count)),
            "provider": provider,
            "region": line.get("Region") or "any",
            "instance": line["InstanceType"],
            "usd_per_hour": _plain(price),
            "spot_usd_per_hour": _plain(spot),
            "as_of": as_of,
            "source": "skypilot-catalog",
            "vcpus": _plain(line.get("vCPUs") or ""),
            "ram_gb": _plain(line.get("MemoryGiB") or ""),
        }
        key = (sku, row["gpus"], row["region"], row["instance"])
        if key not in best or _price(row) < _price(best[key]):
            best[key] = row
    return best.values()


def _price(row: Mapping[str, str]) -> float:
    return float(row["spot_usd_per_hour"] or row["usd_per_hour"])


def _plain(number: str) -> str:
    return f"{float(number):.6f}".rstrip("0").rstrip(".") if number else ""
