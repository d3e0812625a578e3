"""``PodLink`` for rented pods: all words and files go over SSH, to the pod whose key we made."""

from __future__ import annotations

import re
import shlex
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from trmcloud.adapters.ssh.connection import SshConnection, control_dir
from trmcloud.adapters.ssh.forward import board
from trmcloud.adapters.ssh.keys import KeyStore
from trmcloud.adapters.ssh.pull import pull
from trmcloud.adapters.ssh.push import parcel_of, stage, write_text
from trmcloud.adapters.ssh.sync import MAX_ANSWER_BYTES, Mirror, PeerMachines, remote_manifests
from trmcloud.core.contract import manifest as mf
from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.contract.bucket import GRANTS_NAME
from trmcloud.core.contract.command import GIVEN_NAME
from trmcloud.core.contract.command_terms import PARTS_KEY_NAME
from trmcloud.core.contract.manifest import CheckpointManifest
from trmcloud.core.contract.notices import WEBHOOK_NAME
from trmcloud.core.errors import CheckpointError, ConnectionDropped, LinkError, NoAddress
from trmcloud.core.spec.settings import PHASE_NAMES
from trmcloud.io.files import read_small, sync_folder, write_atomic
from trmcloud.io.transfer import Progress, shifted
from trmcloud.ports.compute import PodLink, StageItem

_ASK_EVERY_S = 2.0
_ASK_SOON_S = 0.5
"""Of a pod that boots, or prepares itself: its rent runs, and nothing is trained yet."""
_ASK_TIMEOUT_S = 5.0
_READ_TIMEOUT_S = 3.0
_MAX_PAUSE_S = 30.0
_SAFE_PATH = re.compile(r"(/[A-Za-z0-9_][A-Za-z0-9_.@+=-]{0,120}){1,12}")


@dataclass
class _PodAnswer:
    """The result of the last question to a pod."""

    at: float
    report: contract.AgentReport | None = None
    failures: int = 0
    heard: bool = False
    """The pod has answered before."""

    def pause_s(self) -> float:
        """Until it is worth while to ask again."""
        if self.report is not None:
            return _ASK_SOON_S if self.report.waiting else _ASK_EVERY_S
        if not self.heard:
            return min(_ASK_EVERY_S, _ASK_SOON_S * self.failures)
        return min(_MAX_PAUSE_S, _ASK_EVERY_S * float(1 << min(self.failures, 10)))


class SshPodLink(PodLink):
    """``address_of`` gives a pod's (host, port), None while there is none. ``root`` is the folder
    on the pod that stands for a trmcloud home. ``now`` is epoch seconds. ``way_to`` gives ssh's
    ProxyCommand where a pod's address is none of this machine's; ``ways_to_others`` those to the
    further machines of a pod that has several, which lie at the same address there and have the
    same key."""

    def __init__(
        self,
        home: Path,
        address_of: Callable[[str], tuple[str, int] | None],
        *,
        root: str = contract.POD_ROOT,
        now: Callable[[], float],
        user: str = "root",
        keys: KeyStore | None = None,
        way_to: Callable[[str], str] = lambda pod_name: "",
        ways_to_others: Callable[[str], Sequence[str]] = lambda pod_name: (),
    ) -> None:
        if not _SAFE_PATH.fullmatch(root):
            raise LinkError(f"{root!r:.80} is not a valid folder of a pod")
        self._home, self._address_of, self._root = home, address_of, root
        self._now, self._user, self._way_to = now, user, way_to
        self._ways_to_others = ways_to_others
        self._others = PeerMachines(self._to_others, now)
        self._keys = keys or KeyStore(home)
        self._connections: dict[tuple[str, str], tuple[tuple[str, int], SshConnection]] = {}
        self._mirrors: dict[str, Mirror] = {}
        self._asked: dict[str, _PodAnswer] = {}
        self._troubles: dict[str, LinkError] = {}
        self._silent_since: dict[str, float] = {}
        self._lock = threading.Lock()

    # -- words --------------------------------------------------------------------------------

    def report(self, pod_name: str) -> contract.AgentReport | None:
        """Return the agent's last report, and bring the run's files here up to date.

        Asks at most twice a second until training begins, then every two seconds, less often while
        a pod that was heard does not answer, and never waits for more than a few seconds.
        """
        asked = self._asked.get(pod_name)
        if asked is not None and self._now() < asked.at + asked.pause_s():
            return asked.report
        try:
            report = self._ask(pod_name)
        except LinkError as error:
            failures = asked.failures + 1 if asked is not None else 1
            heard = (asked is not None and asked.heard) or not isinstance(error, ConnectionDropped)
            self._troubles[pod_name] = error
            silent_s = self._now() - self._silent_since.setdefault(pod_name, self._now())
            word = self._others.instead(pod_name, self._pod_folder(pod_name), silent_s)
            self._asked[pod_name] = _PodAnswer(self._now(), word, failures, heard)
            return word
        self._asked[pod_name] = _PodAnswer(self._now(), report, heard=True)
        self._troubles.pop(pod_name, None)
        self._silent_since.pop(pod_name, None)
        return report

    def trouble(self, pod_name: str) -> LinkError | None:
        """Why the pod could not be asked last time; None where it could."""
        return self._troubles.get(pod_name)

    def send_orders(self, pod_name: str, orders: contract.Orders) -> None:
        """As the port says. An order to land goes to all machines of a pod at once, since a save
        may need every rank; one that cannot be reached keeps no other from being told.

        Raises:
            LinkError: a machine could not be told; to tell it again changes nothing for the others.
        """
        path = f"{self._pod_folder(pod_name)}/{contract.ORDERS_NAME}"
        if not orders.land:
            write_text(self.connection(pod_name), path, contract.dump(orders))
            return
        machines, untold = [self.connection(pod_name)], []
        try:
            machines += self._to_others(pod_name)
        except LinkError as error:
            untold.append(error)
        with ThreadPoolExecutor(max_workers=len(machines)) as pool:
            told = [pool.submit(write_text, each, path, contract.dump(orders)) for each in machines]
        for each in told:
            each.result()
        if untold:
            raise untold[0]

    def grant(self, pod_name: str, text: str) -> None:
        self._give(pod_name, GRANTS_NAME, text)

    def give_webhook(self, pod_name: str, text: str) -> None:
        self._give(pod_name, WEBHOOK_NAME, text)

    def give_environment(self, pod_name: str, text: str) -> None:
        """As the port says; the command runs on every machine of the pod."""
        for machine in (*self._to_others(pod_name), self.connection(pod_name)):
            self._give(pod_name, GIVEN_NAME, text, machine)

    def _give(
        self, pod_name: str, name: str, text: str, machine: SshConnection | None = None
    ) -> None:
        path = f"{self._pod_folder(pod_name)}/{name}"
        write_text(machine or self.connection(pod_name), path, text, umask="077")

    def answers(self, pod_name: str) -> bool:
        """Whether the pod's SSH server lets us in now."""
        try:
            there = self.connection(pod_name).run("true", timeout_s=_ASK_TIMEOUT_S).code == 0
        except LinkError as error:
            self._troubles[pod_name] = error
            return False
        self._troubles.pop(pod_name, None)
        return there

    def read_pod_file(self, pod_name: str, name: str) -> str:
        """A small file of the pod's own folder; "" where there is none."""
        path = shlex.quote(f"{self._pod_folder(pod_name)}/{name}")
        answer = self.connection(pod_name).run(
            f"cat {path} 2>/dev/null", timeout_s=_READ_TIMEOUT_S, again=False
        )
        return answer.out.decode("utf-8", "replace")

    def left_behind(self, pod_name: str, earlier: str) -> contract.AgentReport | None:
        """As the port says; what cannot be understood counts as no word."""
        path = shlex.quote(f"{self._pod_folder(earlier)}/{contract.REPORT_NAME}")
        answer = self.connection(pod_name).run(
            f"head -c {contract.MAX_JSON_BYTES} {path} 2>/dev/null", timeout_s=_READ_TIMEOUT_S
        )
        try:
            return contract.load_report(answer.out) if answer.out else None
        except contract.ContractError:
            return None

    @contextmanager
    def tensorboard(self, pod_name: str, local_port: int) -> Iterator[Callable[[], bool]]:
        """As the port says."""
        report = self.report(pod_name)
        if report is None:
            raise ConnectionDropped("the pod does not answer now", where=pod_name)
        logdir = f"{self._root}/{contract.RUNS_DIR}/{self._run_of(pod_name)}"
        with board(
            self.connection(pod_name),
            agent_pid=report.pid,
            pod_dir=self._pod_folder(pod_name),
            logdir=logdir,
            local_port=local_port,
        ) as runs:
            yield runs

    def login(
        self, pod_name: str, command: Sequence[str] = (), *, terminal: bool = True
    ) -> Sequence[str]:
        """As the port says."""
        return self.connection(pod_name).login_command(command, terminal=terminal)

    def close(self) -> None:
        """End the shared connections; they end by themselves a minute after their last use."""
        for _, connection in self._connections.values():
            connection.close()

    # -- files --------------------------------------------------------------------------------

    def stage(self, pod_name: str, items: Sequence[StageItem], progress: Progress) -> None:
        """As the port says; the agent gets a note once the item below ``<root>/code`` is there.
        The first of several machines comes last: what it waits for then is there on all."""
        for item in items:
            if not _SAFE_PATH.fullmatch(item.remote) or not self._is_ours(item.remote):
                raise LinkError(f"{item.remote!r:.80} is not below {self._root}")
        parcels = {item.remote: parcel_of(item.local, item.sha256) for item in items}
        machines = (*self._to_others(pod_name), self.connection(pod_name))
        if len(machines) > 1:
            for machine in machines:
                self._give(pod_name, PARTS_KEY_NAME, self._keys.shared(pod_name), machine)
        whole = sum(parcel.size_bytes() for parcel in parcels.values())
        for number, machine in enumerate(machines):
            tell = shifted(progress, number * whole, len(machines) * whole)
            stage(machine, parcels, self._root, self._pod_folder(pod_name), tell)

    def pull(
        self,
        pod_name: str,
        run_id: str,
        manifest: CheckpointManifest,
        names: Sequence[str],
        progress: Progress,
    ) -> None:
        manifest = self._own(pod_name, run_id, manifest)
        target = self._home / contract.RUNS_DIR / run_id / _inside(manifest)
        self.fetch(pod_name, run_id, manifest, names, str(target), progress)
        there = {*names, *_named_already(target, manifest)}
        kept = tuple(file for file in manifest.files if file.name in there)
        if any(file.kind == "weights" for file in kept):
            write_atomic(target / mf.MANIFEST_NAME, mf.to_json(replace(manifest, files=kept)))
            sync_folder(target.parent)

    def fetch(
        self,
        pod_name: str,
        run_id: str,
        manifest: CheckpointManifest,
        names: Sequence[str],
        into: str,
        progress: Progress,
    ) -> None:
        manifest = self._own(pod_name, run_id, manifest)
        wanted = [file for file in manifest.files if file.name in names]
        remote = f"{self._root}/{contract.RUNS_DIR}/{run_id}/{_inside(manifest)}"
        pull(self.connection(pod_name), remote, wanted, Path(into), progress)

    def _own(self, pod_name: str, run_id: str, manifest: CheckpointManifest) -> CheckpointManifest:
        """It, checked: its names become paths."""
        manifest = mf.from_json(mf.to_json(manifest), manifest.label)
        if manifest.run_id != run_id or run_id != self._run_of(pod_name):
            raise CheckpointError(f"{manifest.label} is not a checkpoint of {run_id}")
        return manifest

    def manifest(
        self, pod_name: str, run_id: str, kept: contract.CheckpointRef
    ) -> CheckpointManifest:
        """As the pod told it when it was last asked; with its metric, where the agent knows it."""
        label = kept.label
        found = remote_manifests(self._home, run_id, kept)
        mine = [m for m in found if (m.label, m.sha256) == (label, kept.sha256)]
        best = mf.pick_best(mine) or next(iter(mine), None)
        if best is None:
            raise CheckpointError(f"{label} is no longer on the pod")
        if best.val_bpb is None and kept.val_bpb is not None:
            raise CheckpointError(f"{label} has a metric that its manifest lacks")
        return best

    def delete(self, pod_name: str, run_id: str, manifest: CheckpointManifest) -> None:
        """As the port says. What is left without a manifest is no checkpoint."""
        manifest = mf.from_json(mf.to_json(manifest), manifest.label)
        if manifest.run_id != run_id:
            raise LinkError(f"{manifest.label} is not a checkpoint of {run_id}")
        folder = self._run_folder(pod_name, manifest.phase)
        step = mf.step_dir_name(manifest.step)
        quoted = shlex.quote(f"{folder}/{contract.CHECKPOINTS_DIR}/{step}")
        connection = self.connection(pod_name)
        answer = connection.run(f"rm -f {quoted}/{mf.MANIFEST_NAME} && rm -rf {quoted}")
        if answer.code != 0:
            raise LinkError(
                f"{manifest.label} could not be deleted on the pod: {answer.said[-200:]}",
                where=connection.where,
            )

    # -- how ----------------------------------------------------------------------------------

    def _ask(self, pod_name: str) -> contract.AgentReport | None:
        mirror = self._mirrors.get(pod_name)
        if mirror is None:
            mirror = Mirror(self._home, pod_name, self._run_of(pod_name))
            self._mirrors[pod_name] = mirror
        asked = mirror.offsets()
        answer = self.connection(pod_name).run(
            mirror.question(self._root, asked), timeout_s=_ASK_TIMEOUT_S, max_bytes=MAX_ANSWER_BYTES
        )
        report = mirror.take(answer.out, asked)
        return self._others.judge(report, self._pod_folder(pod_name)) if report else None

    def _to_others(self, pod_name: str) -> Sequence[SshConnection]:
        return [self.connection(pod_name, way) for way in self._ways_to_others(pod_name)]

    def connection(self, pod_name: str, way: str | None = None) -> SshConnection:
        """To the pod's first machine, or the one that ``way`` leads to."""
        way = self._way_to(pod_name) if way is None else way
        address = self._address_of(pod_name)
        if address is None:
            raise NoAddress("the pod has no address yet", where=pod_name)
        with self._lock:
            known = self._connections.get((pod_name, way))
            if known is not None and known[0] == address:
                return known[1]
            made = SshConnection(
                address,
                identity=self._keys.identity(),
                known_hosts=self._keys.known_hosts(pod_name),
                alias=pod_name,
                control_dir=control_dir(self._home),
                user=self._user,
                proxy=way,
            )
            self._connections[pod_name, way] = (address, made)
            return made

    def _run_of(self, pod_name: str) -> str:
        """The run a pod's name tells of, by this home's own folders: a pod cannot choose it."""
        name = contract.parse_pod_name(pod_name)
        if name is None:
            raise LinkError(f"{pod_name!r} is not a pod of trmcloud")
        runs = self._home / contract.RUNS_DIR
        for entry in runs.iterdir() if runs.is_dir() else ():
            if entry.name.replace("-", "") == name.run_id:
                return entry.name
        raise LinkError(f"no run of this home has the pod {pod_name}", where=str(runs))

    def _pod_folder(self, pod_name: str) -> str:
        if contract.parse_pod_name(pod_name) is None:
            raise LinkError(f"{pod_name!r} is not a pod of trmcloud")
        return f"{self._root}/{contract.PODS_DIR}/{pod_name}"

    def _run_folder(self, pod_name: str, phase: str) -> str:
        if phase not in PHASE_NAMES:
            raise LinkError(f"there is no phase {phase!r}")
        return f"{self._root}/{contract.RUNS_DIR}/{self._run_of(pod_name)}/{phase}"

    def _is_ours(self, remote: str) -> bool:
        return remote.startswith(self._root + "/")


def _inside(manifest: CheckpointManifest) -> str:
    """Return its path below its run's folder, here and there."""
    return f"{manifest.phase}/{contract.CHECKPOINTS_DIR}/{mf.step_dir_name(manifest.step)}"


def _named_already(target: Path, manifest: CheckpointManifest) -> set[str]:
    """Files that an earlier pull of the same checkpoint brought and verified."""
    try:
        text = read_small(target / mf.MANIFEST_NAME, mf.MAX_MANIFEST_BYTES)
        before = mf.from_json(text or "", str(target))
    except (ValueError, CheckpointError):
        return set()
    same = {(file.name, file.sha256) for file in manifest.files}
    return {file.name for file in before.files if (file.name, file.sha256) in same}
