"""Write a provider's folder to begin with, and its row: python scripts/new_provider.py NAME.

What is written works: it rents pods that are kept in memory, and passes the contract suite. Put the
provider's own API, habits and prices in the place of each part.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

TRMCLOUD = Path(__file__).resolve().parents[1] / "trmcloud"
_NAME = re.compile(r"[a-z][a-z0-9_]{1,30}")
_ROWS = "ROWS: dict[str, str] = {\n"

FILES = {
    "__init__.py": "",
    "traits.py": '''"""The traits of TITLE."""

from __future__ import annotations

from trmcloud.core.catalog.providers import (
    AbsenceProof,
    KillLayers,
    PriceTraits,
    ProviderTraits,
    StoragePrices,
)

TRAITS = (
    ProviderTraits(
        name="NAME",
        create_settle_s=60.0,
        absence=AbsenceProof(lists=2),
        kill_latency_s=60.0,
        boot_deadline_s=900.0,
        silence_s=120.0,
        end_grace_s=60.0,
        title="TITLE",
        layers=KillLayers(independent=("guard-elsewhere",)),
        prices=PriceTraits(storage=StoragePrices(20, 10, 100_000, 100_000, 0, 0)),
    ),
)
''',
    "compute.py": '''"""TITLE as a ``Compute``: its pods are kept in memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trmcloud.core.control.observation import Bill, PodSeen, PodStatus
from trmcloud.core.money import Usd, cost
from trmcloud.ports.compute import Compute, PodRequest


@dataclass
class _Pod:
    rate: Usd
    made_at: float
    ended_at: float | None = None


class TITLECompute(Compute):
    """``now`` gives epoch seconds. A pod's id is its name."""

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self._pods: dict[str, _Pod] = {}

    def create(self, request: PodRequest) -> str:
        request.require_wanted()
        self._pods.setdefault(request.name, _Pod(request.rate, self._now()))
        return request.name

    def list_pods(self) -> Sequence[PodSeen]:
        return [
            PodSeen(name, name, PodStatus.RUNNING, pod.rate)
            for name, pod in self._pods.items()
            if pod.ended_at is None
        ]

    def terminate(self, pod_id: str) -> bool:
        pod = self._pods.get(pod_id)
        if pod is None or pod.ended_at is not None:
            return False
        pod.ended_at = self._now()
        return True

    def bill(self, pod_id: str) -> Bill | None:
        pod = self._pods.get(pod_id)
        if pod is None:
            return None
        until = self._now() if pod.ended_at is None else pod.ended_at
        amount = cost(pod.rate, until - pod.made_at)
        return Bill(pod_id, amount, final=pod.ended_at is not None)

    def address_of(self, pod_name: str) -> tuple[str, int] | None:
        """Where the pod's SSH server is reached; None until that is known."""
        return None
''',
    "provider.py": '''"""TITLE as a provider."""

from __future__ import annotations

import time
from functools import cached_property

from trmcloud.adapters.ssh.link import SshPodLink
from trmcloud.providers.NAME.compute import TITLECompute
from trmcloud.providers.protocol import Provider


class TITLE(Provider):
    @cached_property
    def _compute(self) -> TITLECompute:
        return TITLECompute()

    def compute(self, name: str) -> TITLECompute:
        return self._compute

    def link(self, name: str) -> SshPodLink:
        return SshPodLink(self.site.home, self._compute.address_of, now=time.time)


PROVIDER = TITLE
''',
    "profile.py": '''"""How TITLE behaves in the simulator."""

from __future__ import annotations

from trmcloud.sim.world.provider_profiles import ProviderProfile

PROFILES = (
    ProviderProfile(
        provider="NAME",
        boot_s=(20.0, 400.0),
        delete_s=(1.0, 15.0),
        lists_new_after_s=(0.0, 10.0),
        least_billed_s=1.0,
        self_ends="never",
        restarts=False,
        idle_stop_s=0.0,
        lists_gone=False,
        reports_survive=True,
        disk_survives=True,
        ignores_timer=True,
        prepaid=False,
    ),
)
''',
}


def write_provider(name: str, trmcloud: Path = TRMCLOUD) -> Path:
    """The folder, once it and its row are written.

    Raises:
        SystemExit: the name is none, or taken.
    """
    if not _NAME.fullmatch(name):
        raise SystemExit(f"{name!r} is no name of a package: lower case, digits, _")
    folder, registry = trmcloud / "providers" / name, trmcloud / "providers" / "registry.py"
    if folder.exists():
        raise SystemExit(f"{folder} is there already")
    folder.mkdir()
    title = "".join(part.capitalize() for part in name.split("_"))
    for file, text in FILES.items():
        (folder / file).write_text(_sorted(text.replace("NAME", name).replace("TITLE", title)))
    head, begin, rest = registry.read_text().partition(_ROWS)
    rows, end, tail = rest.partition("}\n")
    row = f'    "{name}": "trmcloud.providers.{name}",\n'
    registry.write_text(head + begin + rows + row + end + tail)
    return folder


def _sorted(text: str) -> str:
    """With the last two imports in their order, which depends on the name."""
    before, mark, after = text.partition("from trmcloud.providers.")
    imports, end, rest = (mark + after).partition("\n\n\n")
    return before + "\n".join(sorted(imports.split("\n"))) + end + rest if mark else text


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    print(f"{write_provider(sys.argv[1])}: now tests/contract/test_compute.py -k {sys.argv[1]}")
