"""Clusters of SkyPilot's: its table of them, their launches, what they cost, and the way to them.

The table is asked for once for all providers that are rented through it.

A launch is taken at once and carried out later. One that found nothing to rent leaves no cluster,
and says so in its log alone.

A bill is an estimate. SkyPilot reports its own catalogue's price × the time for which it believes
the cluster was up. That lacks provisioning, disks and traffic, and is nothing where its catalogue
lacks the price; so the rent is no less than the planned rate × the time from the launch until the
cluster was missed. What was missed long after it was last seen counts until its hard stop had been
kept: there was no look in between.

The way to a cluster's own SSH server goes through SkyPilot's connection to the machine, for which
it writes a configuration and a key; it pins no host key. Behind that hop is our server, pinned.
"""

from __future__ import annotations

import re
import shlex
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from trmcloud.adapters.pod_history import Sighting, Sightings
from trmcloud.core.catalog.providers import traits_of
from trmcloud.core.contract.pod_contract import POD_PREFIX, parse_pod_name
from trmcloud.core.control.observation import Bill
from trmcloud.core.errors import ProviderError, ProviderRefused
from trmcloud.core.money import ZERO, Usd, cost
from trmcloud.core.storage import price_per_hour
from trmcloud.providers.skypilot.command import Sky, reasons_in

LIST_FRESH_S = 20.0
"""A list takes SkyPilot seconds of a processor: one serves all who ask within this time."""
LIST_FRESH_NEW_S = 5.0
"""While one is being launched: it may be up at any moment, and be paid for."""
BUSY_AT_MOST_S = 45.0
"""A machine that is busy with other things is asked less often, yet within this time."""
_UNREADABLE = re.compile(rf"\b({POD_PREFIX}-[A-Za-z0-9-]+)\S*: (Failed to query .*)")
"""SkyPilot's warning about a cluster that it could not refresh: it shows the row as it was."""
_EXITED = re.compile(r"KeyError\W+(?:EXITED|TERMINATED|DEAD)\b")
"""Why not, where RunPod says that the pod's container has ended: 0.14.1 knows no such word."""
STOPPED = "STOPPED"
_QUIET = ("--no-show-managed-jobs", "--no-show-services", "--no-show-pools")

Row = Mapping[str, Any]


class Clusters:
    """Rows of clusters that bear a name of ours. ``now`` is epoch seconds."""

    def __init__(self, sky: Sky, *, now: Callable[[], float] = time.time) -> None:
        self._sky, self._now = sky, now
        self._lock = threading.RLock()
        self._rows: Sequence[Row] = ()
        self._failed: ProviderError | None = None
        self._listed_at: float | None = None
        self._took_s = 0.0
        self.are_cached = False
        """The rows are what SkyPilot last knew: none can be believed to be as it says."""
        self._unreadable: Mapping[str, str] = {}

    def rows(self, *, fresh: bool = False) -> Sequence[Row]:
        """
        Raises:
            ProviderError: SkyPilot cannot be asked.
        """
        with self._lock:
            age_s = self._now() - self._listed_at if self._listed_at is not None else -1.0
            if fresh or not 0 <= age_s < self._fresh_s():
                began = time.monotonic()
                try:
                    self._rows, self.are_cached = self._read()
                    self._failed = None
                except ProviderError as error:
                    self._failed = error
                self._listed_at = self._now()
                # Not by the clock that may be set, or that counts while the machine sleeps.
                self._took_s = time.monotonic() - began
            if self._failed is not None:
                raise self._failed
            return self._rows

    def _fresh_s(self) -> float:
        """For how long the rows are believed: a machine that is busy with other things must not be
        kept busy with this, but what has exited is paid for until it is looked at again."""
        if any(self.has_exited(str(row["name"])) for row in self._rows):
            return LIST_FRESH_S
        fresh_s = LIST_FRESH_NEW_S if any(map(is_new, self._rows)) else LIST_FRESH_S
        return max(fresh_s, min(3 * self._took_s, BUSY_AT_MOST_S))

    def known(self) -> Sequence[Row]:
        """The rows as they were last read; asks nothing."""
        return self._rows

    def is_unreadable(self, name: str) -> bool:
        """Whether the cluster's row is what SkyPilot last knew: its cloud's answer was no use."""
        return self.are_cached or name in self._unreadable

    def has_exited(self, name: str) -> bool:
        """Whether nothing runs on its machine now: SkyPilot says STOPPED, as its versions after
        0.14 do of a RunPod pod that has exited, or has no word for what the cloud says."""
        stopped = any(row["name"] == name and row.get("status") == STOPPED for row in self._rows)
        return stopped or _EXITED.search(self._unreadable.get(name, "")) is not None

    def forget(self) -> None:
        """The next who asks gets a fresh list."""
        self._listed_at = None

    @property
    def listed_at(self) -> float | None:
        return self._listed_at

    def _read(self) -> tuple[Sequence[Row], bool]:
        """Fresh rows; where SkyPilot fails over one of them, what it last knew, of which nothing is
        believed but that they are there."""
        words = ("status", *_QUIET, f"{POD_PREFIX}-*")
        self._unreadable = {}
        try:
            rows, said = self._sky.read_and_said(*words, "-r")
            self._unreadable = dict(_UNREADABLE.findall(said))
            return _checked(rows), False
        except ProviderRefused:
            raise
        except ProviderError as error:
            if "KeyError" not in error.what:
                raise
        return _checked(self._sky.read(*words)), True


def is_new(row: Row) -> bool:
    return row.get("status") == "INIT" and row.get("init_kind") == "launching"


def _checked(rows: Any) -> Sequence[Row]:
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ProviderError("sky status printed no list of clusters")
    return [row for row in rows if parse_pod_name(str(row.get("name"))) is not None]


# -- launches ------------------------------------------------------------

SUBMITTED = re.compile(r"Submitted sky\.launch request: ([0-9a-f-]{8,36})")
WATCHED_S = 1800.0
"""A launch that has not failed by then has come through, or hangs."""

_ID = re.compile(r"[0-9a-f-]{8,36}")
_OVER = ("SUCCEEDED", "FAILED", "CANCELLED")
_NONE_LEFT = "sky.exceptions.ResourcesUnavailableError:"
"""Everything that could be asked for was, and whatever came of it was taken down again."""
_ASKED_FOR = re.compile(r" for \{.*\}")
_MAX_REASON = 160
_MOST_ASKED = 8
"""Requests for one pod whose logs are asked for: each takes SkyPilot seconds."""


class Launches:
    """Asks for each launch anew: an API server that was restarted has forgotten them all."""

    def __init__(self, sky: Sky) -> None:
        self._sky = sky

    def active(self, name: str) -> list[str]:
        """Ids of those that go on, in whatever state SkyPilot has for that.

        Raises:
            ProviderError: it cannot be asked.
        """
        return [request for request, state in self._all(name, over=False) if state not in _OVER]

    def ended(self, name: str) -> set[str]:
        """SUCCEEDED, FAILED, CANCELLED: how any of them has ended.

        Raises:
            ProviderError: it cannot be asked.
        """
        return {state for _, state in self._all(name) if state in _OVER}

    def are_known(self, name: str) -> bool:
        return bool(self._all(name))

    def why_none(self, name: str) -> str | None:
        """Why nothing could be rented for it; '' where that is not what happened; None while that
        cannot be told: a launch runs, or is only being submitted, or was forgotten.

        Raises:
            ProviderError: it cannot be asked.
        """
        known = self._all(name)
        if not known or any(state not in _OVER for _, state in known):
            return None
        # One that was called off may have made a machine; one that failed otherwise, too.
        if any(state != "FAILED" for _, state in known) or len(known) > _MOST_ASKED:
            return ""
        reasons = [self._why_none(request) for request, _ in known]
        return reasons[0] if all(reasons) else ""

    def _why_none(self, request: str) -> str:
        # Not its log, which tells of each place that was tried, also where the next one gave.
        said = self._sky.complaint("api", "logs", request)
        if not any(line.strip().startswith(_NONE_LEFT) for line in said.splitlines()):
            return ""
        reason = _ASKED_FOR.sub("", reasons_in(said)[-1])[:_MAX_REASON].rstrip(".")
        return f"{reason} (sky api logs {request[:8]})"

    def _all(self, name: str, *, over: bool = True) -> list[tuple[str, str]]:
        """(id, state) of each; without ``over`` only of those that go on."""
        words = ("-a",) if over else ()
        rows: Any = self._sky.read("api", "status", *words, "-c", name)
        if not isinstance(rows, list):
            raise ProviderError("sky api status printed no list")
        return [
            (str(row["request_id"]), str(row.get("status")))
            for row in rows
            if isinstance(row, dict)
            and row.get("name") == "sky.launch"
            and _ID.fullmatch(str(row.get("request_id")))
        ]


# -- billing ------------------------------------------------------------

ASK_EVERY_S = 30.0
FINAL_AFTER_S = 20.0
"""A list that omits a cluster for a moment must not make its bill final."""
_DAYS = 30
_MOST_USD = 1e7


_ALL_OR_NONE = ("aws", "gcp")
"""They make the machines of a cluster by one request."""


def may_be_billed(provider: str, sighting: Sighting) -> bool:
    """Whether a launch that failed for want of machines may have had some for a while."""
    return sighting.nodes > 1 and provider not in _ALL_OR_NONE


class Biller:
    """Bills of clusters that ``seen`` knows. Reports are kept for ``ASK_EVERY_S``."""

    def __init__(self, provider: str, sky: Sky, seen: Sightings, now: Callable[[], float]) -> None:
        self._provider = provider
        self._sky, self._seen, self._now = sky, seen, now
        self._asked_at: float | None = None
        self._reported: dict[str, Usd] = {}

    def bill(self, name: str) -> Bill | None:
        """None where nothing is known of the cluster. Final once it has been missed for a while.

        Raises:
            ProviderError: SkyPilot cannot be asked.
        """
        sighting = self._seen.get(name)
        reported = self._report().get(name)
        if sighting is None:
            return Bill(name, reported, final=False) if reported is not None else None
        if sighting.never_made and not may_be_billed(self._provider, sighting):
            # SkyPilot reports the time that it spent looking for one.
            return Bill(name, ZERO, final=True)
        now = self._now()
        gone_at = sighting.gone_at
        final = gone_at is not None and now - gone_at >= FINAL_AFTER_S
        lived_s = _lived_s(sighting, now, traits_of(self._provider).kill_latency_s)
        rent = max(reported or ZERO, cost(sighting.rate, lived_s))
        disks = price_per_hour(self._provider, "running", sighting.disk_gb)
        return Bill(name, rent + cost(disks, lived_s), final=final)

    def _report(self) -> dict[str, Usd]:
        now = self._now()
        if self._asked_at is None or not 0 <= now - self._asked_at < ASK_EVERY_S:
            rows = self._sky.read("cost-report", "--days", str(_DAYS))
            if not isinstance(rows, list):
                raise ProviderError("sky cost-report printed no list")
            found: dict[str, Usd] = {}
            for row in rows:
                name, amount = _amount(row)
                # A name that was used twice has cost both.
                found[name] = found.get(name, ZERO) + amount
            self._reported, self._asked_at = found, now
        return self._reported


def _lived_s(sighting: Sighting, now: float, kill_latency_s: float) -> float:
    if sighting.made_at is None:
        return 0.0
    until, name = sighting.gone_at, parse_pod_name(sighting.name)
    if until is None:
        until = now
    elif name is not None and (sighting.alive_at or 0.0) < name.hard_stop_at + kill_latency_s:
        # A laptop that was off for a week has not rented for a week.
        until = min(until, name.hard_stop_at + kill_latency_s)
    return max(0.0, until - sighting.made_at)


def _amount(row: Any) -> tuple[str, Usd]:
    if not isinstance(row, dict):
        return "", ZERO
    name, total = str(row.get("name")), row.get("total_cost")
    if isinstance(total, bool) or not isinstance(total, int | float) or not 0 < total < _MOST_USD:
        return name, ZERO
    return name, Usd.from_micros(round(total * 1e6))


# -- proxy ------------------------------------------------------------

CONNECT_TIMEOUT_S = 10


def config_of(environ: Mapping[str, str], cluster: str) -> Path:
    """Return the path of SkyPilot's SSH configuration of a cluster; it exists only while the
    cluster has an address."""
    return Path(environ.get("HOME") or Path.home()) / ".sky" / "generated" / "ssh" / cluster


def others_in(config: Path, cluster: str) -> tuple[str, ...]:
    """The names of a cluster's further machines, as SkyPilot's configuration has them."""
    try:
        text = config.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ()
    worker = re.compile(rf"Host ({re.escape(cluster)}-worker[0-9]{{1,3}})")
    return tuple(
        match[1] for line in text.splitlines() if (match := worker.fullmatch(line.strip()))
    )


def proxy_command(config: Path, cluster: str, machine: str = "") -> str:
    """For ssh's ProxyCommand, to one of the cluster's machines (its first). Nothing of this machine
    is offered to the machine that answers."""
    options = {
        "BatchMode": "yes",
        "ConnectTimeout": str(CONNECT_TIMEOUT_S),
        "ControlMaster": "no",
        "ControlPath": "none",
        "ForwardAgent": "no",
        "ForwardX11": "no",
        "IdentityAgent": "none",
        "LogLevel": "ERROR",
        "PermitLocalCommand": "no",
        "ServerAliveInterval": "5",
        "ServerAliveCountMax": "3",
    }
    words = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    # SkyPilot writes its path from ~, by which ssh means the account's home, not $HOME.
    key = config.parent.with_name("ssh-keys") / f"{cluster}.key"
    command = shlex.join(["ssh", "-F", str(config), "-i", str(key), *words])
    # ssh expands % in the whole command; the two that it is to expand come last.
    return f"{command.replace('%', '%%')} -W %h:%p {shlex.quote(machine or cluster)}"
