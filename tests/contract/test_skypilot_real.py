"""SkyPilot's own code reads our tasks, and finds the prices that we read."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import shutil
import subprocess
import time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tests.missing_tools import find
from tests.unit.skypilot.rig import KEYS, NOW, request
from trmcloud.adapters.prices.tables import load_offers
from trmcloud.core.catalog.offers import Offer
from trmcloud.core.errors import NotSupported
from trmcloud.providers.skypilot.offers import BASES, PROVIDERS, VERSIONS, read_catalogue
from trmcloud.providers.skypilot.task import accelerator, make_task
from trmcloud.providers.skypilot.traits import CLOUDS, RUNPOD_BY_SKYPILOT

# -- skypilot real ------------------------------------------------------------------------------
# The real SkyPilot reads and plans what we hand it: our own tasks, and those below ``sky/``.
# Skipped where ``make sky`` was not run. One process for all: importing SkyPilot takes seconds.
# Its catalogue is made of our own table of prices, and of the one image that it asks it for,
# since its own is fetched from the network; that a cloud is enabled is taken for granted. Nebius'
# projects are named in SkyPilot's settings, where it need not ask the account for them. AWS,
# which is none of the shipped tasks', is asked about its image while the cluster's settings are
# written: of the task that we hand it for that cloud the plan is all that can be had without.


ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".venv-sky" / "bin" / "python"
COLUMNS = ("InstanceType", "AcceleratorName", "AcceleratorCount", "vCPUs", "MemoryGiB", "Price",
           "SpotPrice", "Region", "GpuInfo")  # fmt: skip
AZURE_IMAGES = [
    {"Tag": "skypilot:custom-gpu-ubuntu-v2", "Region": "",
     "ImageId": "/CommunityGalleries/ours/Images/gpu/Versions/1.0.0"},
]  # fmt: skip
"""What SkyPilot starts a machine from where no image is named; elsewhere that has no table."""
_PLAN = """
import json, sys
import sky
from sky import check, dag, execution, optimizer
from sky.utils import registry

clouds = [registry.CLOUD_REGISTRY.from_str(name) for name in json.loads(sys.argv[1])]
check.get_cached_enabled_clouds_or_refresh = lambda *_, **__: clouds
told = {}
for path in sys.argv[2:]:
    task = sky.Task.from_yaml(path)
    (asked,) = task.resources
    one = dag.Dag()
    one.add(task)
    optimizer.Optimizer.optimize(one, quiet=True)
    best = task.best_resources
    told[path] = dict(
        cloud=str(best.cloud), accelerators=best.accelerators, nodes=task.num_nodes,
        instance=best.instance_type, hourly=best.get_cost(3600), cap=asked.max_hourly_cost,
        down=bool(asked.autostop_config and asked.autostop_config.down), dryrun="not tried",
    )
    if str(best.cloud) != "AWS":
        execution.launch(sky.Task.from_yaml(path), cluster_name="dry", dryrun=True)
        told[path]["dryrun"] = "finished"
print()
print(json.dumps(told))
"""

pytestmark = pytest.mark.skipif(not PYTHON.exists(), reason="no SkyPilot here: make sky")


def write_catalogue(folder: Path) -> list[str]:
    """What our offers say, as SkyPilot's tables; the clouds that are in them."""
    rows: dict[str, list[dict[str, Any]]] = {}
    chips: dict[str, set[str]] = {}
    for offer in load_offers(time.time()):
        provider = RUNPOD_BY_SKYPILOT if offer.provider == "runpod" else offer.provider
        if offer.spot or offer.is_community or provider not in CLOUDS or not offer.instance:
            continue
        with contextlib.suppress(NotSupported):
            chip = accelerator(provider, offer.sku)
            rows.setdefault(CLOUDS[provider], []).append(_row(CLOUDS[provider], chip, offer))
            chips.setdefault(chip, set()).add(CLOUDS[provider])
    for cloud, table in rows.items():
        _write(folder / cloud / "vms.csv", table)
    _write(folder / "azure" / "images.csv", AZURE_IMAGES)
    common = [{"AcceleratorName": chip, "Clouds": sorted(names)} for chip, names in chips.items()]
    _write(folder / "common" / "accelerators.csv", common)
    return sorted(rows)


def _row(cloud: str, chip: str, offer: Offer) -> dict[str, Any]:
    region = "US" if offer.region == "any" else offer.region
    price = float(offer.rate)
    values = (
        offer.instance, chip, offer.gpus, offer.vcpus, offer.ram_gb, price, "", region, "",
    )  # fmt: skip
    row = dict(zip(COLUMNS, values, strict=True))
    if cloud in ("aws", "gcp", "runpod"):
        row["AvailabilityZone"] = f"{region}-a" if cloud == "runpod" else f"{region}a"
    if cloud == "azure":
        row["Generation"] = "V2"
    return row


def write_settings(path: Path) -> None:
    """The account's projects, one in each of Nebius' regions."""
    regions = {offer.region for offer in load_offers(time.time()) if offer.provider == "nebius"}
    projects = {region: {"project_id": f"project-{region}"} for region in sorted(regions)}
    path.write_text(json.dumps({"nebius": {"region_configs": projects}}))


def _write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)


@pytest.mark.skipif(find("rsync") is None, reason="there is no rsync on this machine")
def test_it_reads_and_plans_every_task_within_its_price_and_runs_it_dry(tmp_path: Path) -> None:
    clouds = write_catalogue(tmp_path / ".sky" / "catalogs" / "v8")
    write_settings(tmp_path / ".sky" / "config.yaml")
    archive = tmp_path / "boot.tar.gz"
    archive.write_bytes(b"x")
    ours = {}
    for provider, region in (("aws", "us-east-1"), (RUNPOD_BY_SKYPILOT, "US")):
        path = tmp_path / f"{provider}.yaml"
        path.write_text(make_task(provider, request(region=region), KEYS, str(archive), NOW, {}))
        ours[provider] = str(path)
    shipped = sorted(str(path) for path in (ROOT / "sky").glob("*.yaml"))
    assert len(shipped) == 12
    done = subprocess.run(
        [str(PYTHON), "-c", _PLAN, json.dumps(clouds), *ours.values(), *shipped],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path),
             "SKYPILOT_DISABLE_USAGE_COLLECTION": "1"},
        capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert told[ours["aws"]] == {
        "cloud": "AWS", "accelerators": {"H100": 8}, "nodes": 1, "instance": "p5.48xlarge",
        "hourly": 55.04, "cap": 55.04, "down": True, "dryrun": "not tried",
    }  # fmt: skip
    runpod = told[ours[RUNPOD_BY_SKYPILOT]]
    assert (runpod["cloud"], runpod["accelerators"]) == ("RunPod", {"H100-SXM": 8})
    for name in shipped:
        plan = told[name]
        count, _, chip = Path(name).stem.partition("-")[0].partition("x")
        ((name, number),) = plan["accelerators"].items()
        assert name.startswith(chip)
        assert number == int(count)
        assert 0 < plan["hourly"] <= plan["cap"]
        assert plan["down"]
        assert plan["dryrun"] == "finished"


# -- skypilot prices ----------------------------------------------------------------------------
# Our reading of SkyPilot's catalogues against SkyPilot's own, in one process of the real one.
# Skipped where ``make sky`` was not run. The files are those of
# ``tests/standins/sky_catalogues``.


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
