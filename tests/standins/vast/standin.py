"""One stand-in: an account of its own behind a URL of its own."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tests.standins.runpod.knobs import Knobs as ContainerKnobs
from tests.standins.runpod.machines import RealMachines
from tests.standins.runpod.pods import OnPaper, Pod
from tests.standins.vast.routes import Logged, Routes
from tests.standins.vast.world import Instance, Knobs, World
from tests.standins.web import Faults, GivenClock, Server, settling

API_KEY = "vast0standin0account0key0000000000000000000000000000000000000000"


class _Machines(RealMachines):
    """RunPod's containers, with vast.ai's variables in them."""

    def environment(self, pod: Pod, public_ssh: int | None) -> dict[str, str]:
        theirs = super().environment(pod, public_ssh)
        kept = {name: text for name, text in theirs.items() if "RUNPOD" not in name}
        own = {
            "RUNPOD_POD_ID": pod.id,  # container.sh names the machine by it
            "CONTAINER_ID": pod.id,
            "CONTAINER_API_KEY": pod.key,
            "VAST_CONTAINERLABEL": f"C.{pod.id}",
            "PUBLIC_IPADDR": "127.0.0.1",
            "GPU_COUNT": str(pod.gpu_count),
        }
        if public_ssh is not None:
            own["VAST_TCP_PORT_22"] = str(public_ssh)
        return {**kept, **own}


class StandIn:
    """``url`` is the base before ``/api``."""

    def __init__(
        self,
        world: World,
        routes: Routes,
        server: Server,
        clock: GivenClock | None,
        faults: Faults,
    ) -> None:
        self.world, self._routes, self.url, self._clock = world, routes, server.url, clock
        self.faults, self.server = faults, server
        self.api_key = world.account_key

    @property
    def environment(self) -> dict[str, str]:
        """All that a user of this account sets."""
        return {"VAST_API_KEY": self.api_key, "TRMCLOUD_VAST_API": self.url}

    @property
    def requests(self) -> list[Logged]:
        return self._routes.requests

    @property
    def knobs(self) -> Knobs:
        return self.world.knobs

    def set(self, **values: Any) -> None:
        with self.world.lock:
            for name, value in values.items():
                if not hasattr(self.world.knobs, name):
                    raise AttributeError(name)
                setattr(self.world.knobs, name, value)

    def live(self) -> list[Instance]:
        """Instances that cost money in truth."""
        with self.world.lock:
            self.world.settle()
            return self.world.living()

    def named(self, label: str) -> list[Instance]:
        """All instances of this label that there ever were."""
        return [each for each in self.world.instances.values() if each.label == label]

    def billed(self) -> float:
        with self.world.lock:
            return sum(each["billed"] for each in self.world.truth())

    def advance(self, seconds: float) -> None:
        if self._clock is None:
            raise ValueError("this stand-in keeps real time")
        with self.world.lock:
            self._clock.advance(seconds)
            self.world.settle()

    def inside(self, instance: Instance, script: str) -> str:
        """Return the output of a shell script that runs in the container.

        Raises:
            ValueError: it does not run.
        """
        machines = self.world.machines
        if instance.pod is None or not isinstance(machines, RealMachines):
            raise ValueError(f"{instance.label} does not run")
        return machines.inside(instance.pod, script)


@contextlib.contextmanager
def running(
    folder: Path,
    *,
    clock: GivenClock | None = None,
    real_pods: bool = True,
    keep: Sequence[Path] = (),
    image_env: Mapping[str, str] = MappingProxyType({}),
    reach: Sequence[int] = (),
    api_key: str = API_KEY,
    credit: float = 100.0,
    port: int = 0,
) -> Iterator[StandIn]:
    """A stand-in, up until the block ends; then every process of its instances is dead."""
    now: Callable[[], float] = clock if clock is not None else time.time
    machines: _Machines | OnPaper = OnPaper()
    if real_pods:
        machines = _Machines(folder, ContainerKnobs(), now, keep, image_env, reach)
    world = World(now=now, machines=machines, account_key=api_key, credit=credit)
    routes = Routes(world)
    faults = Faults()
    server = Server(lambda asked: faults.answer(asked, lambda: routes.answer(asked)), port)
    routes.url = server.url
    if isinstance(machines, _Machines):
        machines.api_url = server.url
    server.start()
    try:
        with settling(world.settle, world.lock):
            yield StandIn(world, routes, server, clock, faults)
    finally:
        server.close()
        machines.close()
