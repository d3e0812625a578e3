from __future__ import annotations

from pathlib import Path

import pytest

from trmcloud.adapters.files import load_recipe
from trmcloud.core.catalog.hardware import LocalMachine
from trmcloud.core.catalog.offers import Offer, parse_offers
from trmcloud.core.spec.recipe import Recipe

NOW = 1_795_000_000.0  # 2026-11-18

TABLE = """\
# a comment
sku,gpus,provider,region,instance,usd_per_hour,spot_usd_per_hour,as_of,source
H100-SXM,8,runpod,any,8x-h100,31.92,,2026-11-09,test
H100-SXM,8,aws,us-east-1,p5.48xlarge,55.04,14.5,2026-11-09,test
H100-SXM,4,runpod,any,4x-h100,15.96,,2026-11-09,test
A100-80GB-SXM,8,runpod,any,8x-a100,14.32,,2026-11-09,test
A100-80GB-PCIe,8,runpod,any,8x-a100-pcie,9.52,,2026-11-09,test
A100-80GB-SXM,1,runpod,any,1x-a100,1.79,,2026-11-09,test
H200,8,runpod,any,8x-h200,36.72,,2026-06-01,test
RTX3090,1,runpod,any,1x-3090,0.22,,2026-11-09,test
"""


@pytest.fixture
def now() -> float:
    return NOW


@pytest.fixture
def offers() -> list[Offer]:
    return parse_offers(TABLE, "table", NOW)


@pytest.fixture(scope="session")
def trm() -> Recipe:
    return load_recipe("trm")


@pytest.fixture(scope="session")
def tiny() -> Recipe:
    return load_recipe("trm-tiny")


@pytest.fixture
def machine() -> LocalMachine:
    return LocalMachine("two cores", 2, 16.0, peak_flops_per_process=60e9, mfu=0.35)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"
