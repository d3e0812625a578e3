"""How a test, or a reader of the guide, plays fate: as an object, and as JSON at /_control.

``POST /_control`` takes any of ``{"set": {knob: value}, "reset": [knob, …], "down": seconds,
"advance": seconds, "balance": usd, "lose_host": pod, "end": pod, "cut": pod}``, where a pod is an
id or a name; ``GET /_control`` shows the truth. It answers whoever can reach the port: it is a
toy's lid, not an API.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.standins.runpod.gateway import Gateway, as_json
from tests.standins.runpod.http_types import problem, reply
from tests.standins.runpod.knobs import Knobs
from tests.standins.runpod.machines import RealMachines
from tests.standins.runpod.pods import Pod
from tests.standins.runpod.world import Context
from tests.standins.web import Answer, Asked


class Control:
    """``advance`` exists where the clock was given."""

    def __init__(
        self, world: Context, gateway: Gateway, advance: Callable[[float], None] | None = None
    ) -> None:
        self._world, self._gateway, self._advance = world, gateway, advance

    @property
    def knobs(self) -> Knobs:
        return self._world.knobs

    @property
    def world(self) -> Context:
        return self._world

    def set(self, **values: Any) -> None:
        with self._world.lock:
            self._world.knobs.set(values)

    def reset(self, *names: str) -> None:
        with self._world.lock:
            self._world.knobs.reset(*names)

    def down(self, seconds: float) -> None:
        self.set(down_until=self._world.now() + seconds)

    def advance(self, seconds: float) -> None:
        """Move a given clock on and let happen what is due."""
        if self._advance is None:
            raise ValueError("this stand-in keeps real time")
        self._advance(seconds)
        with self._world.lock:
            self._world.settle()

    def set_balance(self, usd: float) -> None:
        """What the account shows from now on; what was used and not yet charged still comes."""
        with self._world.lock:
            self._world.settle()
            self._world.paid_in = usd + self._world.charged

    def lose_host(self, pod: str) -> None:
        with self._world.lock:
            self._world.lose_host(self.pod(pod))

    def end(self, pod: str) -> None:
        """The provider takes the pod away, unasked."""
        with self._world.lock:
            self._world.end(self.pod(pod), "provider")

    def cut(self, pod: str) -> None:
        """Drop every connection into the pod, as a bad line does."""
        self._real().cut(self.pod(pod))

    def workspace(self, pod: str) -> Path:
        """The folder of this machine that is the pod's mount."""
        return self._real().workspace(self.pod(pod))

    def inside(self, pod: str, script: str) -> str:
        """What a shell script prints that is run in the pod, as its root."""
        return self._real().inside(self.pod(pod), script)

    def _real(self) -> RealMachines:
        if not isinstance(self._world.machines, RealMachines):
            raise ValueError("this stand-in's pods are on paper")
        return self._world.machines

    def pod(self, name: str) -> Pod:
        """By id or name, the newest; KeyError where there never was one."""
        with self._world.lock:
            self._world.settle()
            found = [pod for pod in self._world.all_pods() if name in (pod.id, pod.name)]
            if not found:
                raise KeyError(name)
            return max(found, key=lambda pod: (pod.alive, pod.created_at))

    def billed(self, name: str) -> float:
        """USD that a pod has cost in truth, by now."""
        with self._world.lock:
            return sum(self.pod(name).meter.amounts(self._world.now()))

    def live(self) -> list[Pod]:
        """Pods that cost somebody's rent in truth, whatever any list says."""
        with self._world.lock:
            self._world.settle()
            return list(self._world.pods.values())

    def truth(self) -> dict[str, Any]:
        with self._world.lock:
            now = self._world.settle()
            return {
                "now": now,
                "balance": self._world.balance,
                "spent": self._world.spent(now),
                "usd_per_hour": self._world.rate(),
                "knobs": asdict(self._world.knobs),
                "pods": [
                    {
                        "id": pod.id,
                        "name": pod.name,
                        "status": pod.status,
                        "boots": pod.boots,
                        "ended_by": pod.ended_by,
                        "billed": sum(pod.meter.amounts(now)),
                    }
                    for pod in self._world.all_pods()
                ],
                "requests": [as_json(logged) for logged in self._gateway.requests[-1000:]],
            }

    def answer(self, asked: Asked) -> Answer:
        if asked.method == "GET":
            return reply(self.truth())
        wish = asked.json()
        if not isinstance(wish, dict):
            return problem(400, "a JSON object is expected")
        verbs: dict[str, Callable[[Any], None]] = {
            "set": lambda values: self.set(**values),
            "reset": lambda names: self.reset(*names),
            "down": self.down,
            "advance": self.advance,
            "balance": self.set_balance,
            "lose_host": self.lose_host,
            "end": self.end,
            "cut": self.cut,
        }
        unknown = set(wish) - set(verbs)
        if unknown:
            return problem(400, f"no control is called {min(unknown)!r}")
        try:
            for name, value in wish.items():
                verbs[name](value)
        except (ValueError, TypeError, KeyError) as error:
            return problem(400, str(error))
        return reply(self.truth())
