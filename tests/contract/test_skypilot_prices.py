"""Our reading of SkyPilot's catalogues against SkyPilot's own, in one process of the real one.

Skipped where ``make sky`` was not run. The files are those of ``tests/standins/sky_catalogues``.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from decimal import Decimal
from pathlib import Path

import pytest

from trmcloud.core.errors import NotSupported
from trmcloud.providers.skypilot.offers import BASES, PROVIDERS, VERSIONS, read_catalogue
from trmcloud.providers.skypilot.task import accelerator
from trmcloud.providers.skypilot.traits import CLOUDS, RUNPOD_BY_SKYPILOT

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".venv-sky" / "bin" / "python"
FOLDER = ROOT / "tests" / "standins" / "sky_catalogues"
_ASK = """
import json, sys
from sky import catalog
from sky.skylet import constants

told = []
for cloud, instance, region, name, count, spot in json.loads(sys.argv[1]):
    cost = catalog.get_hourly_cost(instance, spot, region, None, clouds=cloud)
    held = catalog.get_accelerators_from_instance_type(instance, clouds=cloud)
    if cloud == "gcp":
        cost += catalog.get_accelerator_hourly_cost(name, count, spot, region, None, clouds=cloud)
    told.append([float(cost), held])
addresses = [constants.HOSTED_CATALOG_DIR_URL, constants.HOSTED_CATALOG_DIR_URL_S3_MIRROR]
print()
print(json.dumps([told, addresses, constants.CATALOG_SCHEMA_VERSION]))
"""

pytestmark = pytest.mark.skipif(not PYTHON.exists(), reason="no SkyPilot here: make sky")


def test_skypilot_finds_the_same_prices_for_the_same_hardware(tmp_path: Path) -> None:
    asked: list[tuple[str, str, str | None, str, int, bool]] = []
    ours: list[tuple[str, float]] = []
    for path in sorted(FOLDER.glob("*.csv")):
        cloud = path.stem
        there = tmp_path / ".sky" / "catalogs" / "v8" / cloud
        there.mkdir(parents=True)
        shutil.copy(path, there / "vms.csv")
        for row in read_catalogue(cloud, path.read_text(), "2026-11-18").rows:
            for column in ("usd_per_hour", "spot_usd_per_hour"):
                if not row[column]:
                    continue
                region = None if row["region"] == "any" else row["region"]
                instance = row["instance"]
                if cloud == "runpod":  # ours is named by the chip, theirs by SkyPilot's name of it
                    name = accelerator(RUNPOD_BY_SKYPILOT, row["sku"])
                    instance = f"{row['gpus']}x_{name}_SECURE"
                name = _name(cloud, row["sku"])
                is_spot = column == "spot_usd_per_hour"
                asked.append((cloud, instance, region, name, int(row["gpus"]), is_spot))
                ours.append((row["sku"], float(Decimal(row[column]))))
    done = subprocess.run(
        [str(PYTHON), "-c", _ASK, json.dumps(asked)],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path),
             "SKYPILOT_DISABLE_USAGE_COLLECTION": "1"},
        capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    told, addresses, version = json.loads(done.stdout.splitlines()[-1])
    assert addresses == list(BASES)
    assert version == VERSIONS[0]
    for what, (sku, price), (theirs, held) in zip(asked, ours, told, strict=True):
        assert price == pytest.approx(theirs), what
        ((name, count),) = held.items()
        assert count == what[4], what
        # The launch asks for it by the name under which SkyPilot holds it.
        if what[3] and what[0] not in ("vast",):
            assert name == what[3], (what, sku)
    assert {cloud for cloud, *_ in asked} == {path.stem for path in FOLDER.glob("*.csv")}
    assert set(PROVIDERS) == set(CLOUDS.values())


def _name(cloud: str, sku: str) -> str:
    """By which a launch asks for it; '' where this version knows none there."""
    provider = RUNPOD_BY_SKYPILOT if cloud == "runpod" else PROVIDERS[cloud]
    try:
        return accelerator(provider, sku)
    except NotSupported:
        return ""
