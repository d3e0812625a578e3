"""Live prices: RunPod's v2 catalogue, and the catalogues a SkyPilot on this machine keeps.

Rows come back as the cells of ``prices.COLUMNS``. What cannot be read is a note, not an error.
"""

from __future__ import annotations

import csv
import json
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Iterable, Mapping

from trmcloud.core.hardware import GPUS

RUNPOD_URL = "https://api.runpod.io/v2"
ENV_RUNPOD_URL = "TRMCLOUD_RUNPOD_URL"
ENV_RUNPOD_KEY = "RUNPOD_API_KEY"
TIMEOUT_S = 20.0
MAX_BYTES = 32 << 20
COUNTS = (1, 2, 4, 8)

#: RunPod's id of each GPU. "NVIDIA H100 80GB HBM3" is the SXM part.
RUNPOD_IDS: Mapping[str, str] = {
    "NVIDIA B200": "B200",
    "NVIDIA H200": "H200",
    "NVIDIA H100 80GB HBM3": "H100-SXM",
    "NVIDIA H100 PCIe": "H100-PCIe",
    "NVIDIA H100 NVL": "H100-NVL",
    "NVIDIA A100-SXM4-80GB": "A100-80GB-SXM",
    "NVIDIA A100 80GB PCIe": "A100-80GB-PCIe",
    "NVIDIA L40S": "L40S",
    "NVIDIA L4": "L4",
    "NVIDIA GeForce RTX 4090": "RTX4090",
    "NVIDIA GeForce RTX 3090": "RTX3090",
}

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


def read_all(environ: Mapping[str, str], now: float) -> tuple[list[list[str]], list[str]]:
    """(rows, notes): everything that can be read at ``now`` (epoch s)."""
    rows, notes = read_runpod(environ, now)
    more, others = read_skypilot(Path(environ.get("HOME", "/")) / ".sky" / "catalogs")
    mine = {row[2] for row in rows}
    rows += [row for row in more if row[2] not in mine]
    return rows, notes + others


def read_runpod(environ: Mapping[str, str], now: float) -> tuple[list[list[str]], list[str]]:
    base = environ.get(ENV_RUNPOD_URL, RUNPOD_URL).rstrip("/")
    url = f"{base}/catalog/gpus?include=AVAILABILITY&product=POD"
    headers = {"User-Agent": "trmcloud", "Accept": "application/json"}
    if environ.get(ENV_RUNPOD_KEY):
        headers["Authorization"] = f"Bearer {environ[ENV_RUNPOD_KEY]}"
    if not url.startswith(("https://", "http://127.0.0.1", "http://localhost")):
        return [], [f"runpod: {base} is not https, and not this machine: not read"]
    try:
        request = urllib.request.Request(url, headers=headers)
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            data = json.loads(answer.read(MAX_BYTES))
        rows = list(_runpod_rows(data["gpus"], time.strftime("%Y-%m-%d", time.gmtime(now))))
    except urllib.error.HTTPError as error:
        hint = f"; set {ENV_RUNPOD_KEY}" if error.code in (401, 403) else ""
        return [], [f"runpod: HTTP {error.code}{hint}"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return [], [f"runpod: cannot be read: {error}"]
    return rows, [f"runpod: {len(rows)} offers"]


def read_skypilot(folder: Path) -> tuple[list[list[str]], list[str]]:
    """Offers of ``vms.csv`` files under SkyPilot's catalogue folder, the newest version of each."""
    found: dict[str, Path] = {}
    for path in sorted(folder.glob("*/*/vms.csv")):
        found[path.parent.name] = path
    rows: list[list[str]] = []
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


def _runpod_rows(gpus: Iterable[Mapping[str, Any]], as_of: str) -> Iterable[list[str]]:
    for gpu in gpus:
        sku = RUNPOD_IDS.get(str(gpu.get("id")))
        if sku is None:
            continue
        for tier in ("secure", "community"):
            price = (gpu.get("price") or {}).get(tier)
            most = int((gpu.get("maxCount") or {}).get(tier) or 0)
            if not gpu.get(tier) or not isinstance(price, int | float) or price <= 0:
                continue
            for count in COUNTS:
                if count <= most:
                    yield _cells(
                        sku, count, "runpod", "any", f"{count}x_{sku}_{tier.upper()}",
                        f"{price * count:.6f}", "", as_of, "runpod-v2-catalog",
                        note=f"{tier}; stock {gpu.get('availability', 'unknown')}".lower(),
                    )  # fmt: skip


def _sky_rows(cloud: str, lines: Iterable[Mapping[str, str]], as_of: str) -> Iterable[list[str]]:
    provider = _SKY_PROVIDERS.get(cloud, cloud)
    best: dict[tuple[str, str, str, str], list[str]] = {}
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
        cells = _cells(
            sku, int(count), provider, line.get("Region") or "any", line["InstanceType"],
            _plain(price), _plain(spot), as_of, "skypilot-catalog",
            vcpus=_plain(line.get("vCPUs") or ""), ram=_plain(line.get("MemoryGiB") or ""),
        )  # fmt: skip
        key = (cells[0], cells[1], cells[3], cells[4])
        if key not in best or _cheaper(cells, best[key]):
            best[key] = cells
    return best.values()


def _cheaper(cells: list[str], than: list[str]) -> bool:
    return float(cells[6] or cells[5]) < float(than[6] or than[5])


def _plain(number: str) -> str:
    return f"{float(number):.6f}".rstrip("0").rstrip(".") if number else ""


def _cells(
    sku: str, gpus: int, provider: str, region: str, instance: str, price: str, spot: str,
    as_of: str, source: str, *, vcpus: str = "", ram: str = "", note: str = "",
) -> list[str]:  # fmt: skip
    cells = [
        sku, str(gpus), provider, region, instance, price, spot, as_of, source, vcpus, ram, note
    ]  # fmt: skip
    return [cell.replace(",", ";").replace('"', "").replace("\n", " ") for cell in cells]
