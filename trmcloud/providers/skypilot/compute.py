"""SkyPilot as a ``Compute`` for one provider: a pod is a cluster that bears its name.

Its table of clusters is what can be listed: a cached row may be stale, a fresh one ambiguous. What
is not plainly running or being made is "unknown", which counts as spending.
"""

from __future__ import annotations

import contextlib
import json
import math
import shlex
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from trmcloud.adapters.pod_history import Sighting, Sightings
from trmcloud.core.contract.pod_contract import INNER_SSH_PORT, POD_PREFIX, parse_pod_name
from trmcloud.core.contract.records import instant
from trmcloud.core.control.observation import Bill, PodSeen, PodStatus
from trmcloud.core.errors import (
    AmbiguousCreate,
    ConnectionDropped,
    NoCapacity,
    ProviderError,
    ProviderRefused,
)
from trmcloud.core.money import ZERO, Usd
from trmcloud.core.storage import pod_disks_gb, price_per_hour
from trmcloud.io.files import write_atomic
from trmcloud.ports.compute import Compute, PodKeys, PodRequest, ProviderLimit
from trmcloud.providers.skypilot.clusters import (
    SUBMITTED,
    WATCHED_S,
    Biller,
    Clusters,
    Launches,
    Row,
    config_of,
    is_new,
    may_be_billed,
    others_in,
    proxy_command,
)
from trmcloud.providers.skypilot.command import Sky
from trmcloud.providers.skypilot.homes import SkyHome
from trmcloud.providers.skypilot.secrets import COPIED, MachineCredential, on_machine
from trmcloud.providers.skypilot.task import (
    LIMIT_SLACK_MINUTES,
    ShutdownLimit,
    knows_autodown,
    limit_minutes,
    make_task,
)
from trmcloud.providers.skypilot.traits import CLOUDS

_STATUS: Mapping[str, PodStatus] = {
    "PENDING": PodStatus.CREATING,
    "UP": PodStatus.RUNNING,
    "AUTOSTOPPING": PodStatus.RUNNING,
}


EXITED_FOR_S = 20.0
"""A pod that its cloud tells as exited for so long is not being restarted."""
ARM_AGAIN_S = 120.0
"""So long after a limit was set it may still not be shown by a list."""
_AUTODOWN_TAKES_S = (LIMIT_SLACK_MINUTES + 2) * 60.0
"""So long after the hard stop SkyPilot's autodown may still need its credential."""


class SkyPilotCompute(Compute):
    """``keys`` gives a pod's SSH keys by its name; ``payload`` makes the agent's archive, kept
    below ``folder`` for SkyPilot to send, beside what was seen of each cluster; ``clusters`` may be
    shared with other providers; ``shutdown`` is AWS's own limit; ``home`` is where ``sky`` runs,
    if not in the user's own; ``settings`` say whence pods install; ``now`` is epoch seconds."""

    def __init__(
        self,
        provider: str,
        sky: Sky,
        keys: Callable[[str], PodKeys],
        payload: Callable[[], bytes],
        folder: Path,
        *,
        clusters: Clusters | None = None,
        shutdown: ShutdownLimit | None = None,
        home: SkyHome | None = None,
        settings: Mapping[str, str] | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._provider, self._sky, self._keys = provider, sky, keys
        self._home = home
        self._settings = settings if settings is not None else sky.environ
        self._payload, self._folder, self._now = payload, folder, now
        self._clusters = clusters if clusters is not None else Clusters(sky, now=now)
        self._shutdown = shutdown
        self._seen = Sightings(folder)
        self._biller = Biller(provider, sky, self._seen, now)
        self._launches = Launches(sky)
        self._lock = threading.RLock()
        self._noted_at: float | None = None
        self._armed_at: dict[str, float] = {}
        self._came_through: set[str] = set()
        self._backed_up: set[str] = set()

    def require_account(self, rate: Usd) -> None:
        """See, before anything is reserved, that the cloud is there for this user.

        Raises:
            AuthError: the cloud is not enabled. ProviderError: SkyPilot is too old, or down.
        """
        if self._home is not None:
            self._home.lay()
        self._sky.version()
        cloud = CLOUDS[self._provider]
        line = self._home.command(self._sky.program, "check", cloud) if self._home else ""
        self._sky.require_cloud(cloud, line)

    def create(self, request: PodRequest) -> str:
        """Submit the launch; its provisioning is not waited for. The cluster's id is its name.

        Raises:
            NoCapacity: SkyPilot's catalogue has nothing of the kind at the planned rate.
            AmbiguousCreate: something may have been submitted.
        """
        if parse_pod_name(request.name) is None:
            raise ProviderRefused(f"{request.name!r:.80} is not a name made by trmcloud")
        with self._lock:
            if self._home is not None:
                self._home.lay()
            for pod in self._pods(fresh=True):
                if pod.name == request.name and pod.never_made:
                    raise NoCapacity(pod.never_made)
                if pod.name == request.name:
                    return request.name
            if self._launches.active(request.name):
                return request.name
            text = make_task(
                self._provider,
                request,
                self._keys(request.name),
                str(self._archive()),
                self._now(),
                self._settings,
            )
            request.require_wanted()
            self._clusters.forget()
            # Before it is sent: after a crash the next command must know its cost.
            self._note(
                request.name,
                self._now(),
                rate=request.rate,
                nodes=request.nodes,
                disk_gb=request.nodes * pod_disks_gb(self._provider, request.disk_gb),
            )
            self._note_credential(request.name)
            try:
                self._submit(request.name, text)
            finally:
                self._back_up()
            return request.name

    def list_pods(self) -> Sequence[PodSeen]:
        return tuple(self._pods())

    def terminate(self, pod_id: str) -> bool:
        """Call off its launch, which may go on for ever, then end the cluster. Never purges: that
        would forget a machine that is still there.

        Raises:
            ProviderError: it was not taken, or the cluster is not one of ours.
        """
        if parse_pod_name(pod_id) is None:
            raise ProviderError(
                f"{pod_id!r:.80} is not a pod of trmcloud", next_step="if it is yours: sky down"
            )
        with self._lock:
            self._restore_home()
            self._clusters.forget()
            active = self._launches.active(pod_id)
            for request_id in active:
                self._sky.run("api", "cancel", "-y", request_id)
            said = self._sky.run("down", "-y", pod_id)
            was_there = "not found" not in said
            if was_there:
                self._seen.never_made(pod_id, "")
            self._back_up()
            return bool(active) or was_there

    def bill(self, pod_id: str) -> Bill | None:
        """An estimate, by SkyPilot's own prices and ours: see ``billing``."""
        with self._lock:
            self._pods()
            return self._biller.bill(pod_id)

    # -- beyond Compute --------------------------------------------------------------------------

    def own_limits(self, pod_name: str) -> Sequence[ProviderLimit]:
        """Return the limits of SkyPilot and the cloud that would end the cluster, by its newest
        row."""
        row = next((row for row in self._clusters.known() if row.get("name") == pod_name), None)
        if row is None or not self._is_mine(row):
            return ()
        limits = []
        if knows_autodown(self._provider):
            minutes = row.get("autostop")
            text = (
                f"SkyPilot's autodown, {minutes} min after it was set, even if the machine is busy"
            )
            is_set = _is_armed(row)
            gap = self._lapse(pod_name) if is_set else "it is not set on the machine"
            limits.append(ProviderLimit("autostop", not gap, gap or text))
        if self._shutdown is not None:
            limits.append(self._shutdown.limit(pod_name))
        return limits

    def arm(self, pod_name: str, hard_stop_at: float) -> None:
        """Set the limit anew, just behind the hard stop: it counts from when it is set, and of
        clusters launched side by side some have been left without one.

        Raises:
            ProviderError: SkyPilot did not take it.
        """
        minutes = str(limit_minutes(hard_stop_at, self._now()))
        limit = ("-i", minutes, "--down", "--wait-for", "none")
        self._sky.run("autostop", "-y", pod_name, *limit)
        self._clusters.forget()

    def address_of(self, pod_name: str) -> tuple[str, int] | None:
        """Return the address at which the cluster's own machine reaches the pod's SSH server; None
        until there is a way to that machine."""
        with contextlib.suppress(ProviderError):
            self._pods()
        there = config_of(self._sky.environ, pod_name).is_file()
        return ("127.0.0.1", INNER_SSH_PORT) if there else None

    def way_to(self, pod_name: str) -> str:
        """ssh's ProxyCommand to that machine."""
        return proxy_command(config_of(self._sky.environ, pod_name), pod_name)

    def ways_to_others(self, pod_name: str) -> Sequence[str]:
        """Likewise, to each further machine of a pod that has several.

        Raises:
            LinkError: SkyPilot does not know the way to all of them yet.
        """
        config = config_of(self._sky.environ, pod_name)
        others = others_in(config, pod_name)
        nodes = self._nodes(pod_name)
        if len(others) < nodes - 1:
            raise ConnectionDropped(
                f"{1 + len(others)} of {nodes} machines have an address", where=pod_name
            )
        return [proxy_command(config, pod_name, machine) for machine in others]

    def lapsing(self, until: float, pod_name: str = "") -> Mapping[str, str]:
        """Autodown, and the agent, which ends a cluster by it, need the credential that is there
        until it is over."""
        found = self._credential(pod_name)
        if found is None:
            why = "the credential on the machine was not recorded"
        elif found.outlives(until + _AUTODOWN_TAKES_S):
            return {}
        else:
            why = f"its credential may not be valid then: {found.why}"
        return dict.fromkeys(("agent", "autostop"), why)

    def on_machine(self, pod_name: str = "") -> str:
        found = self._credential(pod_name)
        restored = self._home.restored() if self._home is not None else ""
        return "; ".join(filter(None, (found.words if found is not None else "", restored)))

    def by_hand(self, pod_name: str) -> Sequence[str]:
        """``sky status`` and ``sky down`` of the cluster, in the home that knows it."""
        verbs = (("status", "-r", pod_name), ("down", pod_name))
        if self._home is None:
            return tuple(shlex.join([self._sky.program, *words]) for words in verbs)
        return tuple(self._home.command(self._sky.program, *words) for words in verbs)

    def knows(self, pod_name: str) -> bool:
        """Whether its launch was asked for through this home of SkyPilot's."""
        return self._seen.get(pod_name) is not None

    def limit_by(self, pod_name: str, at: float) -> None:
        """Set the cluster's own limit so that it ends the cluster by ``at`` (epoch s), give or take
        the minute in which SkyPilot looks at it.

        Raises:
            ProviderError: SkyPilot did not take it.
        """
        self.arm(pod_name, at - LIMIT_SLACK_MINUTES * 60.0)

    def stop_server(self) -> None:
        """Stop the local server of this home, which the next command starts again. That of the
        user's own home is left alone.

        Raises:
            ProviderError: it could not be stopped.
        """
        if self._home is not None:
            self._sky.run("api", "stop")

    # -- how -------------------------------------------------------------------------------------

    def _restore_home(self) -> None:
        if self._home is not None and self._home.is_lost:
            self._home.lay()

    def _back_up(self) -> None:
        if self._home is not None:
            self._home.back_up(self._now())

    def _note_credential(self, name: str) -> None:
        """Note the credential that a machine has: the one that was there when it was made."""
        if self._home is None:
            return
        found = self._home.on_machine()
        until = found.until if found.until is None or math.isfinite(found.until) else "never"
        text = json.dumps({"what": found.what, "until": until, "why": found.why})
        write_atomic(self._credential_note(name), text)

    def _credential_note(self, name: str) -> Path:
        return self._folder / f"{name}.credential"

    def _credential(self, name: str) -> MachineCredential | None:
        """Of a cluster that was launched before there were notes: what is in the user's home."""
        if name:
            with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
                told = json.loads(self._credential_note(name).read_text(encoding="utf-8"))
                until = math.inf if told["until"] == "never" else told["until"]
                if until is None or isinstance(until, int | float):
                    return MachineCredential(str(told["what"]), until, str(told["why"]))
        if self._home is not None:
            return self._home.on_machine() if not name else None
        home = Path(self._sky.environ.get("HOME") or Path.home())
        return on_machine(self._provider, home, COPIED, self._sky.environ)

    def _lapse(self, pod_name: str) -> str:
        """Why the cluster's limit cannot be counted on though it is set; '' where it can."""
        found, name = self._credential(pod_name), parse_pod_name(pod_name)
        if found is None or name is None:
            return "it is set, but the credential on the machine was not recorded: exposed"
        if found.outlives(name.hard_stop_at + _AUTODOWN_TAKES_S):
            return ""
        return f"it is set, but may have no valid credential then: {found.why}: exposed"

    def _nodes(self, pod_name: str) -> int:
        sighting = self._seen.get(pod_name)
        return sighting.nodes if sighting is not None else 1

    def _submit(self, name: str, text: str) -> None:
        with tempfile.TemporaryDirectory(prefix="trmcloud-sky-") as folder:
            path = Path(folder) / "task.yaml"
            path.touch(mode=0o600)
            path.write_text(text, encoding="utf-8")
            try:
                said = self._sky.run("launch", "--async", "-y", "-c", name, str(path))
            except ProviderRefused:
                raise
            except ProviderError as error:
                self._reconcile(name, error)
                return
        if not SUBMITTED.search(said):
            self._reconcile(name, ProviderError("sky launch named no request"))

    def _reconcile(self, name: str, error: ProviderError) -> None:
        """A launch that failed to say that it was submitted may have been: ask, by its name."""
        try:
            known = self._launches.are_known(name)
        except ProviderError:
            raise AmbiguousCreate(error.what, next_step="sky api status") from error
        if known:
            return
        if "ResourcesUnavailable" in error.what:
            raise NoCapacity(error.what) from error
        raise AmbiguousCreate(error.what, next_step=error.next_step) from error

    def _pods(self, *, fresh: bool = False) -> list[PodSeen]:
        with self._lock:
            self._restore_home()
            rows, is_new_list = self._rows(fresh=fresh)
            told = self._why_none() if is_new_list else {}
            if told:
                # A list from before its launch had ended proves nothing.
                rows, _ = self._rows(fresh=True)
                here = {str(row["name"]) for row in self._clusters.known()}
                for name in told.keys() - here if not self._clusters.are_cached else ():
                    self._seen.never_made(name, told[name])
            return [*map(self._pod_seen, rows), *self._never_made()]

    def _rows(self, *, fresh: bool) -> tuple[list[Row], bool]:
        """Those of this provider, and whether they have just been listed."""
        rows = [row for row in self._clusters.rows(fresh=fresh) if self._is_mine(row)]
        is_new_list = self._noted_at != self._clusters.listed_at
        if is_new_list:
            self._noted_at = self._clusters.listed_at
            self._look_at(rows)
        return rows, is_new_list

    def _why_none(self) -> dict[str, str]:
        """Of launches that a fresh list lacks and that are over: why they have made nothing."""
        told: dict[str, str] = {}
        at = self._now()
        for sighting in self._seen.unmade() if not self._clusters.are_cached else ():
            if not 0 <= at - (sighting.made_at or 0.0) < WATCHED_S:
                continue
            with contextlib.suppress(ProviderError):
                why = self._launches.why_none(sighting.name)
                if why:
                    told[sighting.name] = (
                        f"{self._provider} has no free machine for this account: {why}"
                    )
                elif why is not None:
                    self._seen.never_made(sighting.name, "")
        return told

    def _never_made(self) -> list[PodSeen]:
        """For as long as somebody may ask: see ``PodSeen.never_made``."""
        return [
            PodSeen(
                seen.name,
                seen.name,
                PodStatus.GONE,
                seen.rate if may_be_billed(self._provider, seen) else ZERO,
                ended_at=seen.gone_at,
                never_made=seen.never_made,
            )
            for seen in self._seen.all()
            if seen.never_made
            and (name := parse_pod_name(seen.name)) is not None
            and self._now() < name.hard_stop_at
        ]

    def _look_at(self, rows: Sequence[Row]) -> None:
        """Put a new list on record, and mend what it lacks."""
        at = self._now()
        for row in rows:
            self._note(str(row["name"]), at, row)
        self._seen.missed((str(row["name"]) for row in rows), at)
        if self._clusters.are_cached:
            return
        for row in rows:
            name, is_up = str(row["name"]), row.get("status") == "UP"
            if is_up and self._shutdown is not None:
                self._shutdown.see_to(name, str(row.get("region") or ""), at, self._nodes(name))
            if self._clusters.is_unreadable(name) or self._clusters.has_exited(name):
                self._end_exited(name, at)
                continue
            # Its limit is the last thing that a launch sets.
            if is_new(row):
                continue
            if is_up and name not in self._backed_up:
                self._backed_up.add(name)
                self._back_up()
            if is_up and _is_armed(row):
                continue
            if self._has_failed(row, at):
                # Its machine may be up and paid for, and no agent on it: nothing else would end it.
                self._end_here(name)
            elif is_up and name in self._came_through:
                self._arm_again(name, at)

    def _end_exited(self, name: str, at: float) -> None:
        """Nothing is left of what it held, and its agent is not there to end it."""
        sighting = self._seen.get(name)
        since = sighting.exited_at if sighting is not None else None
        if since is not None and at - since >= EXITED_FOR_S:
            self._end_here(name)

    def _end_here(self, name: str) -> None:
        with contextlib.suppress(ProviderError):
            self._sky.run("down", "-y", name)
        self._seen.never_made(name, "")
        self._clusters.forget()

    def _has_failed(self, row: Row, at: float) -> bool:
        """Whether the cluster's launch ended before its job was started."""
        name, made = str(row["name"]), instant(row.get("launched_at"))
        if name in self._came_through:
            return False
        if made is None or not 0 <= at - made < WATCHED_S:
            self._came_through.add(name)
            return False
        try:
            ended = self._launches.ended(name)
            if ended & {"FAILED", "CANCELLED"}:
                return True
            if "SUCCEEDED" in ended:
                self._came_through.add(name)
        except ProviderError:
            pass
        return False

    def _arm_again(self, name: str, at: float) -> None:
        known_at, parsed = self._armed_at.get(name), parse_pod_name(name)
        if not knows_autodown(self._provider) or parsed is None:
            return
        if known_at is not None and 0 <= at - known_at < ARM_AGAIN_S:
            return
        self._armed_at[name] = at
        # It is asked again in a while; until then the layer is shown as absent.
        with contextlib.suppress(ProviderError):
            self.arm(name, parsed.hard_stop_at)

    def _note(
        self,
        name: str,
        at: float,
        row: Row | None = None,
        *,
        rate: Usd | None = None,
        nodes: int = 1,
        disk_gb: int = 0,
    ) -> None:
        made = _made_at(row, self._seen.get(name)) if row is not None else at
        is_up = row is not None and row.get("status") == "UP"
        self._seen.alive(
            name,
            name,
            rate=rate,
            disk_gb=disk_gb,
            made_at=made,
            started_at=at if is_up else None,
            at=at,
            nodes=nodes,
            has_exited=row is not None and self._clusters.has_exited(name),
        )

    def _is_mine(self, row: Row) -> bool:
        cloud = row.get("cloud")
        if cloud is None:
            # It is being launched, and its cloud is not known; our notes tell whether we asked.
            return self._seen.get(str(row["name"])) is not None
        return str(cloud).lower() == CLOUDS[self._provider]

    def _pod_seen(self, row: Row) -> PodSeen:
        name, status = str(row["name"]), row.get("status")
        word = _STATUS.get(str(status), PodStatus.UNKNOWN)
        if is_new(row):
            word = PodStatus.CREATING
        if self._clusters.is_unreadable(name):
            word = PodStatus.UNKNOWN
        sighting = self._seen.get(name)
        made_at = _made_at(row, sighting)
        rate = sighting.rate if sighting is not None else ZERO
        gb = sighting.disk_gb if sighting is not None else 0
        disks = price_per_hour(self._provider, "running", gb)
        return PodSeen(name, name, word, rate, made_at=made_at, disk_rate=disks)

    def _archive(self) -> Path:
        """SkyPilot reads it when the machine is up, long after the launch was submitted."""
        path = self._folder / "boot.tar.gz"
        self._folder.mkdir(parents=True, exist_ok=True)
        payload = self._payload()
        if not path.exists() or path.read_bytes() != payload:
            write_atomic(path, payload)
        return path


def _made_at(row: Row, seen: Sighting | None) -> float | None:
    """Since when the cluster may cost rent: SkyPilot counts from its last try to provision it, an
    earlier one may have had machines, and the server that says so may be set to another time. Whose
    launch it was wrote down when it asked, and with which rate."""
    told = instant(row.get("launched_at"))
    known = seen.made_at if seen is not None else None
    if seen is not None and seen.rate and known is not None:
        return known
    return min((at for at in (told, known) if at is not None), default=None)


def _is_armed(row: Row) -> bool:
    """Whether the row's limit would end the cluster, and not only stop it."""
    minutes = row.get("autostop")
    return isinstance(minutes, int) and minutes >= 0 and row.get("to_down") is True


# A provider's clusters in both homes of SkyPilot's: its own, and the user's.
#
# Everything is rented in the provider's own home. What was rented before there was one is known
# to SkyPilot in the user's home alone, and goes on being watched and ended there.

LATE_S = 7 * 86400.0
"""So long after its hard stop a cluster that was seen in the user's home is still asked for."""


class TwoHomeCompute(Compute):
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
                f"{request.name} was requested in the user's own SkyPilot home before",
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

    def own_limits(self, pod_name: str) -> Sequence[ProviderLimit]:
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
