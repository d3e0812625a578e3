"""The account as it really is: pods, volumes, keys and money. Answers are made elsewhere.

Nothing happens between calls: ``settle`` brings everything up to the clock, in order, so a test
that owns the clock owns the world, and one that does not sees real time pass.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from typing import Any

from tests.standins.runpod import billing, catalog
from tests.standins.runpod.knobs import BEHAVIOUR, Knobs
from tests.standins.runpod.pods import ACTIONS, UP, Machines, Pod, Volume

NO_CAPACITY = (
    "There are no longer any instances available with the requested specifications. "
    "Please refresh and try again."
)
NO_FREE_GPUS = "There are not enough free GPUs on the host machine to start this pod."
NO_SUCH_HOST = "create pod: could not find any pods with required specifications"
NO_POOL = "Your account cannot access the requested pool"
NO_BALANCE = (
    "Your account balance is too low to rent a pod: at least one hour of this configuration is "
    "needed"
)
OVER_LIMIT = "the account's spend limit would be exceeded"
MOST_ENV = 50
ID_LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"


class Refused(Exception):
    """What the API answers instead: an HTTP status and its detail."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status, self.detail = status, detail


class Context:
    """All calls hold ``lock``; times are epoch s by ``now``; money is USD."""

    def __init__(
        self,
        *,
        knobs: Knobs,
        now: Callable[[], float],
        machines: Machines,
        api_key: str,
        balance: float,
        spend_limit: float = 80.0,
        seed: int = 0,
    ) -> None:
        self.lock = threading.RLock()
        self.knobs, self.now, self.machines = knobs, now, machines
        self.api_key = api_key
        self.paid_in, self.spend_limit = balance, spend_limit
        self.pods: dict[str, Pod] = {}
        self.gone: dict[str, Pod] = {}
        self.volumes: dict[str, Volume] = {}
        self.gone_volumes: dict[str, Volume] = {}
        self.opened_at = now()
        self.charged = 0.0
        self._ticked_at = self.opened_at
        self._random = random.Random(seed)

    # -- money -----------------------------------------------------------------------------

    @property
    def balance(self) -> float:
        """What the account shows: charged at each tick, not in between."""
        return self.paid_in - self.charged

    def spent(self, until: float | None = None) -> float:
        at = self.now() if until is None else until
        pods = (sum(pod.meter.amounts(at)) for pod in self.all_pods())
        volumes = (volume.cost(at) for volume in self.all_volumes())
        return sum(pods) + sum(volumes)

    def rate(self) -> float:
        """USD an hour now, disks and volumes included."""
        volumes = sum(volume.rates[-1][1] for volume in self.volumes.values())
        return sum(pod.meter.rate() for pod in self.pods.values()) + volumes

    def all_pods(self) -> Sequence[Pod]:
        return [*self.gone.values(), *self.pods.values()]

    def all_volumes(self) -> Sequence[Volume]:
        return [*self.gone_volumes.values(), *self.volumes.values()]

    # -- pods --------------------------------------------------------------------------------

    def create(self, body: dict[str, Any]) -> Pod:
        """The pod, made; Refused where nothing was made."""
        at = self.settle()
        gpu, cloud, place = self._placed(body)
        place = self.knobs.lands_in or place
        gpu_count = int(body["gpu"].get("count", 1))
        rate = round(gpu.price(cloud) * gpu_count, 6)
        persistent = int((body.get("mounts", {}).get("persistent") or {}).get("size", 0))
        disk = billing.disk_rate(int(body.get("disk", 50)), persistent)
        if self.paid_in - self.spent(at) < rate + disk:
            raise Refused(402, NO_BALANCE)
        if self.rate() + rate + disk > self.spend_limit:
            raise Refused(402, OVER_LIMIT)
        pod = Pod(
            id=self._new_id(14),
            name=body["name"],
            created_at=at,
            visible_at=at + self.knobs.list_omits_new_s,
            body={**body, "mounts": dict(body.get("mounts", {}))},
            cloud=cloud,
            data_center=place,
            rate=rate,
            key="rpa_pod_" + self._new_id(24),
            host=self._new_id(8, "0123456789abcdef"),
            gpu_id=gpu.id,
            gpu_count=gpu_count,
            cuda=self._cuda(body),
            ssh_after_s=self.knobs.ssh_after_s,
            stuck=self._stuck(gpu.id),
            host_says=list(self.knobs.boot_log),
            inside={
                "fewer_gpus": self.knobs.fewer_gpus,
                "shown_gpu": self.knobs.shown_gpu,
                "absent": list(self.knobs.absent_commands),
                "workspace_mib": self.knobs.workspace_mib,
                "runpodctl": self.knobs.runpodctl,
            },
        )
        self._boot(pod, at)
        self.pods[pod.id] = pod
        return pod

    def _stuck(self, gpu_id: str) -> bool:
        knobs = self.knobs
        return bool(knobs.boot_log) and gpu_id in (knobs.boot_log_gpus or [gpu_id])

    def find(self, pod_id: str) -> Pod:
        self.settle()
        pod = self.pods.get(pod_id)
        if pod is None:
            raise Refused(404, "pod not found")
        return pod

    def listed(self) -> Sequence[Pod]:
        at = self.settle()
        return [pod for pod in self.pods.values() if pod.visible_at <= at]

    def delete(self, pod_id: str, by: str = "api") -> None:
        pod = self.find(pod_id)
        if not pod.alive:
            return
        at = self.now()
        pod.deleted_at, pod.gone_at, pod.ended_by = at, at + self.knobs.delete_s, by
        self.machines.halt(pod, forget=True)
        self.settle()

    def act(self, pod_id: str, action: str, by: str = "api") -> Pod | None:
        """The pod after it; None after terminate. Refused(409) where its status forbids it."""
        pod = self.find(pod_id)
        if action not in ACTIONS[pod.status] or not pod.alive:
            raise Refused(409, f"action {action} is not valid for a pod that is {pod.status}")
        at = self.now()
        if action == "terminate":
            self.delete(pod_id, by)
            return None
        if action == "stop":
            self._stop(pod, at, by)
        elif action == "restart":
            self._reset(pod)
        else:
            if self.sold_out(pod.gpu_id, pod.data_center):
                raise Refused(400, NO_FREE_GPUS)
            if self.paid_in - self.spent(at) < pod.rate:
                raise Refused(402, NO_BALANCE)
            self._boot(pod, at)
        self.settle()
        return pod

    # -- volumes -------------------------------------------------------------------------------

    def create_volume(self, body: dict[str, Any]) -> Volume:
        at = self.settle()
        place = catalog.data_center(body["dataCenter"])
        if place is None or not place.volume_types:
            raise Refused(400, f"data center {body['dataCenter']} has no network volumes")
        kind = body.get("type", place.volume_types[0])
        if kind not in place.volume_types:
            raise Refused(400, f"data center {place.id} has no {kind} volumes")
        rate = billing.volume_rate(int(body["size"]), kind)
        volume = Volume(
            id=self._new_id(10), name=body["name"], size=int(body["size"]),
            data_center=place.id, kind=kind, created_at=at, rates=[(at, rate)],
        )  # fmt: skip
        self.volumes[volume.id] = volume
        return volume

    def find_volume(self, volume_id: str) -> Volume:
        self.settle()
        if volume_id not in self.volumes:
            raise Refused(404, "network volume not found")
        return self.volumes[volume_id]

    def update_volume(self, volume_id: str, changes: dict[str, Any]) -> Volume:
        volume = self.find_volume(volume_id)
        size = int(changes.get("size", volume.size))
        if size < volume.size:
            raise Refused(400, "a network volume's size cannot be reduced")
        volume.name, volume.size = changes.get("name", volume.name), size
        volume.rates.append((self.now(), billing.volume_rate(size, volume.kind)))
        return volume

    def delete_volume(self, volume_id: str) -> None:
        volume = self.find_volume(volume_id)
        if any(pod.volume_id == volume_id for pod in self.pods.values()):
            raise Refused(400, "network volume is in use by a pod")
        volume.ended_at = self.now()
        self.gone_volumes[volume_id] = self.volumes.pop(volume_id)
        self.machines.remove_volume(volume_id)

    # -- the world's own doings ------------------------------------------------------------------

    def settle(self) -> float:
        """Bring all up to the clock; answers with the time."""
        at = self.now()
        while self._ticked_at + BEHAVIOUR.tick_s <= at:
            self._ticked_at += BEHAVIOUR.tick_s
            self._advance(self._ticked_at)
            self.charged = self.spent(self._ticked_at)
            if self.balance <= 0:
                self._broke(self._ticked_at)
        self._advance(at)
        return at

    def lose_host(self, pod: Pod) -> None:
        """The machine is gone: nothing runs, nothing is billed, the list does not say so."""
        pod.host_lost = True
        pod.meter.stop(self.now())
        self.machines.halt(pod, forget=False)

    def end(self, pod: Pod, by: str) -> None:
        """The provider takes the pod away."""
        self.delete(pod.id, by)

    def _advance(self, at: float) -> None:
        for pod in list(self.pods.values()):
            if pod.gone_at is not None:
                if pod.gone_at <= at:
                    pod.meter.stop(pod.gone_at)
                    pod.status = "TERMINATED"
                    self.gone[pod.id] = self.pods.pop(pod.id)
                continue
            if pod.status == "PROVISIONING" and pod.starting_at <= at:
                pod.status = "STARTING"
                pod.say(pod.starting_at, "system", f"create container {pod.body.get('image', '')}")
            if pod.status == "STARTING" and pod.running_at <= at:
                pod.status, pod.started_at = "RUNNING", pod.running_at
                pod.say(pod.running_at, "system", f"start container for {pod.id}: begin")
                if pod.stuck:
                    for line in pod.host_says:
                        pod.say(pod.running_at, "system", line)
                    continue
                self.machines.boot(pod)

    def _boot(self, pod: Pod, at: float) -> None:
        pod.status, pod.started_at = "PROVISIONING", None
        pod.starting_at = at + self.knobs.provisioning_s
        pod.running_at = pod.starting_at + self.knobs.starting_s
        disk = int(pod.body.get("disk", 50))
        pod.meter.run(at, pod.rate, billing.disk_rate(disk, pod.persistent_gb))
        self._advance(at)

    def _stop(self, pod: Pod, at: float, by: str) -> None:
        pod.status, pod.ended_by = "EXITED", by
        pod.meter.run(at, 0.0, billing.stopped_rate(pod.persistent_gb))
        pod.say(at, "system", "stop container")
        self.machines.halt(pod, forget=False)

    def _reset(self, pod: Pod) -> None:
        pod.say(self.now(), "system", "restart container")
        self.machines.halt(pod, forget=False)
        pod.started_at = self.now()
        self.machines.boot(pod)

    def _broke(self, at: float) -> None:
        """The $0 rule: what has a network volume is stopped, the rest is terminated."""
        for pod in list(self.pods.values()):
            if not pod.alive or pod.status not in UP:
                continue
            if pod.volume_id:
                self._stop(pod, at, "balance")
            else:
                pod.deleted_at = pod.gone_at = at
                pod.ended_by = "balance"
                self.machines.halt(pod, forget=True)
        self._advance(at)

    def _placed(self, body: dict[str, Any]) -> tuple[catalog.Gpu, str, str]:
        """(GPU type, cloud, data centre); Refused as RunPod would."""
        cloud = body.get("cloud", "SECURE")
        if "gpu" not in body or "cpu" in body:
            raise Refused(400, "exactly one of gpu or cpu must be set, and there are no CPUs here")
        if len(body.get("env", {})) > MOST_ENV:
            raise Refused(400, f"at most {MOST_ENV} environment variables")
        places = self._places(body, cloud)
        asked = body["gpu"]
        gpu = catalog.gpu(asked["id"])
        if gpu is None:
            raise Refused(400, f"no GPU type has the id {asked['id']!r}")
        if asked.get("allowedCudaVersions") and "minCudaVersion" in asked:
            raise Refused(400, "allowedCudaVersions and minCudaVersion exclude each other")
        if gpu.id in self.knobs.forbidden_gpus:
            raise Refused(403, NO_POOL)
        vcpus, memory_gb = catalog.host(gpu.id)
        if asked.get("minVcpuCountPerGpu", 0) > vcpus or asked.get("minRamPerGpu", 0) > memory_gb:
            raise Refused(400, NO_SUCH_HOST)
        if cloud == "COMMUNITY" and not places:
            free = [place for place in gpu.data_centers if not self.sold_out(gpu.id, place)]
        else:
            offered = [place for place in places or gpu.data_centers if place in gpu.data_centers]
            free = [place for place in offered if not self.sold_out(gpu.id, place)]
        few = int(asked.get("count", 1)) > gpu.most(cloud)
        if few or not free or self._cuda(body) is None:
            raise Refused(400, NO_CAPACITY)
        return gpu, cloud, free[0]

    def _places(self, body: dict[str, Any], cloud: str) -> list[str]:
        places = list(body.get("dataCenterIds", []))
        for place in places:
            if catalog.data_center(place) is None:
                raise Refused(400, f"unknown data center {place}")
        mounts = body.get("mounts", {})
        if "persistent" in mounts and mounts.get("network"):
            raise Refused(400, "mounts.persistent and mounts.network exclude each other")
        if mounts.get("network"):
            volume = self.volumes.get(mounts["network"][0]["volumeId"])
            if volume is None:
                raise Refused(400, "network volume not found")
            if cloud == "COMMUNITY":
                raise Refused(400, "network volumes are for SECURE pods only")
            if places and volume.data_center not in places:
                raise Refused(400, f"network volume {volume.id} is in {volume.data_center}")
            return [volume.data_center]
        return places

    def _cuda(self, body: dict[str, Any]) -> str | None:
        """The host's CUDA version; None where no host will do."""
        asked, offered = body["gpu"], [v for v, free in catalog.CUDA_VERSIONS if free]
        if asked.get("allowedCudaVersions"):
            offered = [v for v in offered if v in asked["allowedCudaVersions"]]
        if "minCudaVersion" in asked:
            least = catalog.version(asked["minCudaVersion"])
            offered = [v for v in offered if catalog.version(v) >= least]
        return self.knobs.cuda if self.knobs.cuda in offered else next(iter(offered), None)

    def sold_out(self, gpu_id: str, place: str) -> bool:
        return bool({"*", gpu_id, f"{gpu_id}@{place}"} & set(self.knobs.no_capacity))

    def _new_id(self, length: int, letters: str = ID_LETTERS) -> str:
        return "".join(self._random.choice(letters) for _ in range(length))
