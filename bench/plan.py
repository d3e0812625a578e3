"""How fast the planner is: in process over many offers, and as a command beside SkyPilot's."""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from pathlib import Path

import trmcloud.providers.registry  # noqa: F401  fills the traits
from bench.row import Row, paired_ratio
from trmcloud.adapters.files import load_recipe
from trmcloud.adapters.prices.tables import load_offers
from trmcloud.core.catalog.offers import Offer
from trmcloud.core.money import Usd
from trmcloud.core.planner.planning import make_plan
from trmcloud.core.spec.spec import RunSpec

OFFERS = 10_000
NOW = 1_795_000_000.0
ROUNDS = 15


def run() -> list[Row]:
    """Milliseconds of a full plan over ten thousand offers; ratios to SkyPilot where it is."""
    spec = RunSpec(recipe="trm", phases=("fast", "extreme"), budget=Usd(1000))
    recipe = load_recipe("trm")
    offers = synthetic(load_offers(NOW), OFFERS)
    seconds = []
    for _ in range(ROUNDS):
        begun = time.process_time()
        make_plan(spec, recipe, offers, NOW, "p-0000")
        seconds.append(time.process_time() - begun)
    detail = f"best of {ROUNDS}, processor time, {OFFERS:,} offers"
    rows = [Row("make_plan, 10⁴ offers", min(seconds) * 1000, 30, "lower", "ms", detail)]
    seconds = []
    for _ in range(ROUNDS):
        begun = time.process_time()
        load_offers(NOW)
        seconds.append(time.process_time() - begun)
    rows.append(Row("read the shipped offers", min(seconds) * 1000, 5, "lower", "ms", "best"))
    return rows + _beside_skypilot()


def synthetic(offers: list[Offer], number: int) -> list[Offer]:
    """``number`` offers like the shipped ones, each at a place and a price of its own."""
    made = []
    for index in range(number):
        offer = offers[index % len(offers)]
        rate = Usd.from_micros(offer.rate.micros * (900 + index % 200) // 1000)
        made.append(offer._replace(region=f"region-{index}", rate=rate, spot=False))
    return made


def _beside_skypilot() -> list[Row]:
    sky = Path(sys.executable).parent / "sky"
    found = str(sky) if sky.exists() else shutil.which("sky")
    if not found:
        return []
    ours = [str(Path(sys.executable).parent / "trmcloud"), "plan", "--budget", "1000"]
    rows = []
    with tempfile.TemporaryDirectory() as home:
        for name, arguments in (
            ("plan ÷ sky gpus list", ["gpus", "list"]),
            ("plan ÷ sky launch --dryrun", ["launch", "--dryrun", "-y", "--gpus", "A100:8"]),
        ):
            try:
                ratio, mine, theirs = paired_ratio(
                    ours, [found, *arguments], environment={"TRMCLOUD_HOME": home}, rounds=3
                )
            except Exception as error:
                print(f"  {name}: {error}")
                continue
            detail = f"{mine * 1000:.0f} ms against {theirs * 1000:.0f} ms"
            rows.append(Row(name, ratio, 1.0, "lower", "×", detail))
    return rows
