"""One stand-in: an account of its own behind a URL of its own."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from tests.standins.runpod.control import Control
from tests.standins.runpod.gateway import Gateway, Judge, Logged
from tests.standins.runpod.knobs import Knobs
from tests.standins.runpod.machines import RealMachines
from tests.standins.runpod.pods import OnPaper
from tests.standins.runpod.world import Context
from tests.standins.web import Answer, Asked, Faults, GivenClock, Server, settling

__all__ = ["API_KEY", "StandIn", "running"]
API_KEY = "rpa_STANDIN0ACCOUNT0KEY"


class StandIn:
    """``url`` is the base of v2 (without /v2) and of /graphql."""

    def __init__(
        self,
        world: Context,
        gateway: Gateway,
        control: Control,
        server: Server,
        faults: Faults,
    ) -> None:
        self.control, self.api_key, self.url = control, world.api_key, server.url
        self._gateway, self.faults, self.server = gateway, faults, server

    @property
    def environment(self) -> dict[str, str]:
        """All that a user of this account sets."""
        return {
            "RUNPOD_API_KEY": self.api_key,
            "TRMCLOUD_RUNPOD_API": self.url,
            "RUNPOD_API_BASE_URL": self.url,
        }

    @property
    def requests(self) -> list[Logged]:
        """All requests so far; clear it to count anew."""
        return self._gateway.requests


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
    balance: float = 100.0,
    spend_limit: float = 80.0,
    quotas: tuple[int, int, int] = (6000, 300_000, 5_000_000),
    port: int = 0,
    judge: Judge | None = None,
    seed: int = 0,
) -> Iterator[StandIn]:
    """A stand-in, up until the block ends; then every process of its pods is dead.

    ``real_pods``: pods' commands run, in namespaces of their own; else they are on paper.
    ``keep`` and ``image_env``: folders of this machine, and variables, that every image has.
    ``reach``: ports of this machine's loopback that pods can connect to, beside the API's.
    """
    now: Callable[[], float] = clock if clock is not None else time.time
    knobs = Knobs()
    machines: RealMachines | OnPaper = OnPaper()
    if real_pods:
        machines = RealMachines(folder, knobs, now, keep, image_env, reach)
    world = Context(
        knobs=knobs, now=now, machines=machines, api_key=api_key, balance=balance,
        spend_limit=spend_limit, seed=seed,
    )  # fmt: skip
    gateway = Gateway(world, quotas, judge)
    control = Control(world, gateway, clock.advance if clock is not None else None)
    faults = Faults()

    def respond(asked: Asked) -> Answer:
        if asked.path == "/_control":
            return control.answer(asked)
        return faults.answer(asked, lambda: gateway.answer(asked))

    server = Server(respond, port)
    if isinstance(machines, RealMachines):
        machines.api_url = server.url
    server.start()
    try:
        with settling(world.settle, world.lock):
            yield StandIn(world, gateway, control, server, faults)
    finally:
        server.close()
        machines.close()
