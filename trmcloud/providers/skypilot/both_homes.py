"""A provider's clusters in both homes of SkyPilot's: its own, and the user's.

Everything is rented in the provider's own home. What was rented before there was one is known to
SkyPilot in the user's home alone, and goes on being watched and ended there.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from trmcloud.core.contract.pod_contract import POD_PREFIX, parse_pod_name
from trmcloud.core.control.observation import Bill, PodSeen
from trmcloud.core.errors import AmbiguousCreate
from trmcloud.core.money import Usd
from trmcloud.ports.compute import Compute, OwnLimit, PodRequest
from trmcloud.providers.skypilot.compute import SkyPilotCompute
from trmcloud.providers.skypilot.homes import SkyHome

LATE_S = 7 * 86400.0
"""So long after its hard stop a cluster that was seen in the user's home is still asked for."""


class BothHomes(Compute):
    """``earlier`` is the adapter in ``user_home``; ``seen`` is where it has noted its clusters."""

    def __init__(
        self,
        own: SkyPilotCompute,
        home: SkyHome,
        earlier: SkyPilotCompute,
        user_home: Path,
        seen: Path,
        now: Callable[[], float],
    ) -> None:
        self._own, self._home, self._earlier = own, home, earlier
        self._user_home, self._seen, self._now = user_home, seen, now
        self._listed_earlier: set[str] = set()

    def create(self, request: PodRequest) -> str:
        """Nothing is launched in the user's home any more.

        Raises:
            AmbiguousCreate: it was asked for there, and is not in the list yet.
        """
        if self._earlier.knows(request.name):
            if any(pod.name == request.name and not pod.gone for pod in self._earlier.list_pods()):
                return request.name
            raise AmbiguousCreate(
                f"{request.name} was asked for in the user's own SkyPilot home before",
                next_step="sky api status",
            )
        return self._own.create(request)

    def list_pods(self) -> Sequence[PodSeen]:
        """A home that cannot be asked makes the whole list unknown: a cluster may be in it."""
        pods = list(self._own.list_pods()) if self._home.is_used else []
        if self._has_earlier():
            there = self._earlier.list_pods()
            self._listed_earlier = {pod.name for pod in there}
            mine = {pod.name for pod in pods}
            pods += [pod for pod in there if pod.name not in mine]
        return tuple(pods)

    def terminate(self, pod_id: str) -> bool:
        """Of a cluster that neither home has on record both are asked."""
        if self._own.knows(pod_id):
            return self._own.terminate(pod_id)
        if self._earlier.knows(pod_id) or pod_id in self._listed_earlier:
            return self._earlier.terminate(pod_id)
        done = self._own.terminate(pod_id) if self._home.is_used else False
        return self._earlier.terminate(pod_id) or done

    def bill(self, pod_id: str) -> Bill | None:
        return self.of(pod_id).bill(pod_id)

    def require_account(self, rate: Usd) -> None:
        self._own.require_account(rate)

    def own_limits(self, pod_name: str) -> Sequence[OwnLimit]:
        return self.of(pod_name).own_limits(pod_name)

    def lapsing(self, until: float, pod_name: str = "") -> Mapping[str, str]:
        return self.of(pod_name).lapsing(until, pod_name)

    def on_machine(self, pod_name: str = "") -> str:
        return self.of(pod_name).on_machine(pod_name)

    def by_hand(self, pod_name: str) -> Sequence[str]:
        return self.of(pod_name).by_hand(pod_name)

    # -- beyond Compute --------------------------------------------------------------------------

    def of(self, pod_name: str) -> SkyPilotCompute:
        """The adapter whose home knows the cluster; that of new ones where neither does."""
        if self._own.knows(pod_name):
            return self._own
        is_earlier = self._earlier.knows(pod_name) or pod_name in self._listed_earlier
        return self._earlier if is_earlier else self._own

    def address_of(self, pod_name: str) -> tuple[str, int] | None:
        return self.of(pod_name).address_of(pod_name)

    def way_to(self, pod_name: str) -> str:
        return self.of(pod_name).way_to(pod_name)

    def ways_to_others(self, pod_name: str) -> Sequence[str]:
        return self.of(pod_name).ways_to_others(pod_name)

    def arm(self, pod_name: str, hard_stop_at: float) -> None:
        self.of(pod_name).arm(pod_name, hard_stop_at)

    def limit_by(self, pod_name: str, at: float) -> None:
        self.of(pod_name).limit_by(pod_name, at)

    def stop_server(self) -> None:
        self._own.stop_server()

    # -- how -------------------------------------------------------------------------------------

    def _has_earlier(self) -> bool:
        """Whether SkyPilot in the user's home may know a cluster of ours: by our notes, or by its
        own table, which is only read. Asking it would start its server."""
        for path in self._seen.glob("*") if self._seen.is_dir() else ():
            name = parse_pod_name(path.stem)
            if name is not None and self._now() < name.hard_stop_at + LATE_S:
                return True
        table = self._user_home / ".sky" / "state.db"
        if not table.exists():
            return False
        try:
            with contextlib.closing(
                sqlite3.connect(f"file:{table}?mode=ro", uri=True, timeout=2.0)
            ) as opened:
                query = "SELECT 1 FROM clusters WHERE name LIKE ? LIMIT 1"
                return opened.execute(query, (f"{POD_PREFIX}-%",)).fetchone() is not None
        except sqlite3.Error:
            return True  # it is SkyPilot's to read
