"""Every real provider's adapter on its stand-in, with the faults that it can be shown.

A rig lists in ``CAN`` how it injects each fault, and in ``LACKS`` why one cannot be shown there. An
injected fault that no request has reached fails its test: see ``Rig.require_reached``.
"""

from __future__ import annotations

import base64
import contextlib
import json
import math
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar

from tests.contract import huggingface_rig, runpod_rig, vast_rig
from tests.contract.pod_requests import RATE, request_at
from tests.standins import web
from tests.standins.runpod.client import Client
from tests.standins.runpod.fixture import judged
from tests.standins.runpod.http_types import problem
from tests.standins.web import Answer, Asked, CarryOut, Faults, GivenClock
from tests.unit.skypilot import rig as sky_rig
from trmcloud.ports.compute import Compute, PodRequest
from trmcloud.providers.vast.create import ENV_PIECE

WEB_PAGE = b"<html><h1>502 Bad Gateway</h1></html>"
BROKEN = web.answered(503, WEB_PAGE, "text/html")
TAKEN = web.answered(200, '{"success": true}')


class Fault(Enum):
    CREATE_FAILS = "5xx, and nothing was made"
    CREATE_LOST = "5xx, and a machine was made"
    CREATE_DROPPED = "the connection closes after a machine was made"
    CREATE_GARBLED = "a machine was made, and the answer cannot be read"
    CREATE_REFUSED = "a create is refused with a status"
    CREATE_THROTTLED = "a create is answered 429"
    UNPLUGGED = "there is no connection when a create is sent"
    NO_CAPACITY = "what was on offer is gone"
    NO_MONEY = "the account is empty"
    PRICE_ROSE = "the machine costs more than was reserved"
    BILLED_DEARER = "a machine is billed at more than its planned rate"
    THROTTLED = "every answer is 429 for some time"
    KEY_REVOKED = "the account's key is not known any more"
    LIST_FAILS = "a list is answered 5xx some times"
    LIST_GARBLED = "a list cannot be read"
    LIST_ROW_UNNAMED = "a row of a list does not say which machine it is"
    LIST_CUT = "the second page of a list fails"
    LIST_OMITS = "a list omits a machine"
    ONE_FAILS = "a machine that a list omits cannot be asked for by its id"
    STATUS_NEW = "a list has a status that is not known"
    TWIN = "two machines bear one name"
    FOREIGN = "the account has a machine that is not ours"
    END_FAILS = "an end is answered 5xx"
    END_FORBIDDEN = "an end is refused"
    END_NOT_FOUND = "an end is answered 404 though the machine lives"
    END_IN_VAIN = "an end is taken and nothing ends"
    BILL_FAILS = "bills cannot be read"
    BILL_LATE = "nothing is billed for a long time"
    LOG_GONE = "the log of a machine that failed cannot be read"


Injections = Mapping[Fault, Callable[..., web.Fault]]
Reasons = Mapping[Fault, str]


def carried_out(asked: Asked, carry_out: CarryOut) -> Answer:
    """Let a request through: the fault is in the seller's state."""
    return carry_out()


class Rig(ABC):
    """``compute`` is an adapter that knows nothing yet; its provider is an account of its own."""

    name: ClassVar[str]
    CAN: ClassVar[Injections]
    LACKS: ClassVar[Reasons]
    omitted: ClassVar[str]
    """Where a machine is seen that the first list omits: ``listed``, ``cross_listed``, or
    ``missed``: nowhere."""
    CREATE: ClassVar[str]
    LIST: ClassVar[str]
    compute: Compute
    faults: Faults

    def __init__(self) -> None:
        self._injected: dict[Fault, web.Fault] = {}

    def inject(self, fault: Fault, **how: Any) -> web.Fault:
        put = self.faults.put(self.CAN[fault](self, **how))
        self._injected[fault] = put
        return put

    def lift(self) -> None:
        self.require_reached()
        self.lift_unreached()

    def lift_unreached(self) -> None:
        self._injected.clear()
        self.faults.lift()

    def require_reached(self) -> None:
        unreached = [fault.name for fault, put in self._injected.items() if not put.struck]
        assert not unreached, f"{self.name} was never shown {unreached}"

    def creates(self) -> int:
        """How many creates were sent."""
        return len(self.faults.asked(self.CREATE))

    def lists(self) -> int:
        return len(self.faults.asked(self.LIST))

    def request(self, generation: int = 1, **more: Any) -> PodRequest:
        return request_at(self.now(), "L4", generation, holds=True, **more)

    def named(self, name: str, *, cross: bool = False) -> list[Any]:
        pods = self.compute.cross_listed() if cross else self.compute.list_pods()
        return [pod for pod in pods if pod.name == name and not pod.gone]

    @abstractmethod
    def now(self) -> float: ...

    @abstractmethod
    def on(self, seconds: float) -> None: ...

    @abstractmethod
    def another(self) -> Compute:
        """A command of its own in another home."""

    @abstractmethod
    def living(self) -> list[str]:
        """The names of machines that cost money in truth."""

    @abstractmethod
    def foreign(self) -> str:
        """Let somebody else rent in this account; the machine's id."""

    def boots_badly(self, pod_id: str) -> None:
        """Let the machine fail so that its log would say why."""
        self.on(30)

    def why(self, pod_id: str) -> str:
        """What the adapter says of a machine that failed; '' where it says nothing."""
        trouble = self.compute.boot_trouble(pod_id)
        return trouble.text if trouble is not None else ""


# -- sellers that speak HTTP ---------------------------------------------------------------------


class HttpRig(Rig):
    is_403_final: ClassVar[bool] = True
    """Whether a create that is answered 403 would be so for every candidate."""
    ONE: ClassVar[str]
    END: ClassVar[str]
    BILL: ClassVar[str]
    PRICES: ClassVar[str]
    key: str
    server: web.Server
    clock: GivenClock

    def now(self) -> float:
        return self.clock()

    # -- words of the seller's ----------------------------------------------------------------

    @abstractmethod
    def refusal(self, status: int, text: str) -> Answer: ...

    @abstractmethod
    def rows(self, data: Any) -> list[dict[str, Any]]:
        """The rows in a list's answer, to be changed in place."""

    @abstractmethod
    def name_of(self, row: Mapping[str, Any]) -> str: ...

    @abstractmethod
    def set_status(self, row: dict[str, Any], status: str) -> None: ...

    def twice(self, asked: Asked, carry_out: CarryOut) -> Answer:
        carry_out()
        return carry_out()

    # -- faults ---------------------------------------------------------------------------------

    def create_lost(self) -> web.Fault:
        spoilt = Answer(502, WEB_PAGE, "text/html")
        return web.Fault(self.CREATE, web.after_it_was_done(lambda answer: spoilt))

    def create_garbled(self, body: bytes) -> web.Fault:
        def spoil(answer: Answer) -> Answer:
            return Answer(answer.status, body or answer.body[: len(answer.body) // 2])

        return web.Fault(self.CREATE, web.after_it_was_done(spoil))

    def create_refused(self, status: int) -> web.Fault:
        answer = self.refusal(status, f"why\x1b[31m not {self.key}\n at all")
        return web.Fault(self.CREATE, lambda asked, carry_out: answer, times=math.inf)

    def create_throttled(self, times: int, retry_after_s: int) -> web.Fault:
        return web.Fault(self.CREATE, self._too_many(retry_after_s), times=times)

    def unplugged(self) -> web.Fault:
        """The last request before a create is the last that is answered."""

        def strike(asked: Asked, carry_out: CarryOut) -> Answer:
            raise AssertionError("nothing is answered any more")

        put = web.Fault(self.CREATE, strike)

        def unplug() -> None:
            self.server.unplug()
            put.struck = 1

        self.unplug = unplug
        return put

    unplug: Callable[[], None]

    def throttled(self, seconds: float, retry_after_s: int) -> web.Fault:
        until, refuse = self.now() + seconds, self._too_many(retry_after_s)

        def strike(asked: Asked, carry_out: CarryOut) -> Answer:
            return refuse(asked, carry_out) if self.now() < until else carry_out()

        return web.Fault(".*", strike, times=math.inf)

    def _too_many(self, retry_after_s: int) -> Callable[[Asked, CarryOut], Answer]:
        def strike(asked: Asked, carry_out: CarryOut) -> Answer:
            answer = self.refusal(429, "slow down")
            answer.headers["Retry-After"] = str(retry_after_s)
            return answer

        return strike

    def key_revoked(self) -> web.Fault:
        answer = self.refusal(401, "no such key")
        return web.Fault(".*", lambda asked, carry_out: answer, times=math.inf)

    def list_garbled(self, body: bytes) -> web.Fault:
        def spoil(answer: Answer) -> Answer:
            return Answer(200, body or answer.body[: len(answer.body) // 2])

        return web.Fault(self.LIST, web.after_it_was_done(spoil), times=math.inf)

    def list_row_unnamed(self) -> web.Fault:
        def spoil(data: Any) -> Any:
            for row in self.rows(data):
                del row["id"]
            return data

        return web.Fault(self.LIST, web.changed(spoil), times=math.inf)

    def list_cut(self) -> web.Fault:
        self.small_pages()
        return web.Fault(self.LIST, BROKEN, times=math.inf, spare=1)

    @abstractmethod
    def small_pages(self) -> None:
        """One machine in a page of the list."""

    def list_omits(self, name: str, times: float = math.inf) -> web.Fault:
        def spoil(data: Any) -> Any:
            rows = self.rows(data)
            rows[:] = [row for row in rows if self.name_of(row) != name]
            return data

        return web.Fault(self.LIST, web.changed(spoil), times)

    def status_new(self) -> web.Fault:
        def spoil(data: Any) -> Any:
            for row in self.rows(data):
                self.set_status(row, "A_NEW_WORD")
            return data

        return web.Fault(self.LIST, web.changed(spoil), times=math.inf)

    def end_forbidden(self) -> web.Fault:
        answer = self.refusal(403, "you may not")
        return web.Fault(self.END, lambda asked, carry_out: answer, times=math.inf)

    def end_not_found(self) -> web.Fault:
        answer = self.refusal(404, "not found")
        return web.Fault(self.END, lambda asked, carry_out: answer, times=math.inf)

    def foreign_machine(self) -> web.Fault:
        """It is seen by the next list."""
        self.foreign_id = self.foreign()
        return web.Fault(self.LIST, carried_out, times=math.inf)

    foreign_id: str

    def told_to_host(self) -> list[str]:
        """What the creates have given to hosts, packed or not."""
        sent = (asked.json() for asked in self.faults.asked(self.CREATE))
        return [text for body in sent for text in self.unpacked(body)]

    def unpacked(self, body: Any) -> Iterator[str]:
        """All texts in it, and what those in base64 hold."""
        if isinstance(body, dict | list):
            for each in body.values() if isinstance(body, dict) else body:
                yield from self.unpacked(each)
        elif isinstance(body, str):
            yield body
            with contextlib.suppress(ValueError):
                yield base64.b64decode(body, validate=True).decode("utf-8", "replace")


_HTTP: Injections = {
    Fault.CREATE_FAILS: lambda rig: web.Fault(rig.CREATE, BROKEN, math.inf),
    Fault.CREATE_LOST: HttpRig.create_lost,
    Fault.CREATE_DROPPED: lambda rig: web.Fault(rig.CREATE, web.lost),
    Fault.CREATE_GARBLED: HttpRig.create_garbled,
    Fault.CREATE_REFUSED: HttpRig.create_refused,
    Fault.CREATE_THROTTLED: HttpRig.create_throttled,
    Fault.UNPLUGGED: HttpRig.unplugged,
    Fault.THROTTLED: HttpRig.throttled,
    Fault.KEY_REVOKED: HttpRig.key_revoked,
    Fault.LIST_FAILS: lambda rig, times=math.inf: web.Fault(rig.LIST, BROKEN, times),
    Fault.LIST_GARBLED: HttpRig.list_garbled,
    Fault.LIST_ROW_UNNAMED: HttpRig.list_row_unnamed,
    Fault.LIST_CUT: HttpRig.list_cut,
    Fault.LIST_OMITS: HttpRig.list_omits,
    Fault.STATUS_NEW: HttpRig.status_new,
    Fault.TWIN: lambda rig: web.Fault(rig.CREATE, rig.twice),
    Fault.FOREIGN: HttpRig.foreign_machine,
    Fault.END_FAILS: lambda rig: web.Fault(rig.END, BROKEN, math.inf),
    Fault.END_FORBIDDEN: HttpRig.end_forbidden,
    Fault.END_NOT_FOUND: HttpRig.end_not_found,
    Fault.END_IN_VAIN: lambda rig: web.Fault(rig.END, TAKEN, math.inf),
    Fault.BILL_FAILS: lambda rig: web.Fault(rig.BILL, BROKEN, math.inf),
}
_ONE_FAILS: Injections = {
    Fault.ONE_FAILS: lambda rig: web.Fault(rig.ONE, BROKEN, math.inf),
}


class RunPodRig(HttpRig):
    name = "runpod"
    omitted = "cross_listed"
    is_403_final = False
    CREATE, LIST = "POST /v2/pods", "GET /v2/pods"
    ONE = "GET /v2/pods/[^/]+"
    END = "DELETE /v2/pods/[^/]+|POST /v2/pods/[^/]+/action"
    BILL, PRICES = "GET /v2/billing/pods", "GET /v2/catalog/gpus"

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        super().__init__()
        self.clock = GivenClock()
        running = judged(folder / "runpod", real_pods=False, clock=self.clock)
        self.standin = stack.enter_context(running)
        self.faults, self.server = self.standin.faults, self.standin.server
        self.key = self.standin.api_key
        self.compute = runpod_rig.build((self.standin, self.clock)).compute

    def on(self, seconds: float) -> None:
        self.standin.control.advance(seconds)

    def another(self) -> Compute:
        return runpod_rig.build((self.standin, self.clock)).compute

    def living(self) -> list[str]:
        return [pod.name for pod in self.standin.control.live()]

    def foreign(self) -> str:
        return str(Client(self.standin).rent("somebody-elses")["id"])

    def refusal(self, status: int, text: str) -> Answer:
        return problem(status, text)

    def rows(self, data: Any) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = data["pods"]
        return found

    def name_of(self, row: Mapping[str, Any]) -> str:
        return str(row["name"])

    def set_status(self, row: dict[str, Any], status: str) -> None:
        row["status"] = status

    def small_pages(self) -> None:
        self.standin.control.set(list_page=1)

    def no_capacity(self) -> web.Fault:
        text = "create pod: There are no longer any instances available with the specifications."
        answer = self.refusal(500, text)
        return web.Fault(self.CREATE, lambda asked, carry_out: answer, times=math.inf)

    def no_money(self) -> web.Fault:
        self.standin.control.set_balance(0.2)
        return web.Fault(self.CREATE, carried_out)

    def price_rose(self) -> web.Fault:
        def dearer(data: Any) -> Any:
            for row in data["gpus"]:
                row["price"] = {
                    tier: 2 * usd if isinstance(usd, int | float) else usd
                    for tier, usd in row["price"].items()
                }
            return data

        return web.Fault(self.PRICES, web.changed(dearer), times=math.inf)

    def billed_dearer(self) -> web.Fault:
        def dearer(data: Any) -> Any:
            for row in self.rows(data):
                row["cost"] *= 2
            return data

        return web.Fault(self.LIST, web.changed(dearer), times=math.inf)

    def bill_late(self) -> web.Fault:
        self.standin.control.set(billing_lag_s=1e9)
        return web.Fault(self.BILL, carried_out, times=math.inf)

    CAN: ClassVar[Injections] = {
        **_HTTP,
        Fault.NO_CAPACITY: no_capacity,
        Fault.NO_MONEY: no_money,
        Fault.PRICE_ROSE: price_rose,
        Fault.BILLED_DEARER: billed_dearer,
        Fault.BILL_LATE: bill_late,
        Fault.LOG_GONE: lambda rig: web.Fault("GET .*/logs", web.answered(404, "{}"), math.inf),
    }
    LACKS: ClassVar[Reasons] = {
        Fault.ONE_FAILS: "what its list omits is looked for in a second list, not by its id"
    }


class VastRig(HttpRig):
    name = "vast"
    omitted = "listed"
    CREATE, LIST = "PUT /api/v0/asks/[0-9]+/", "GET /api/v1/instances/"
    ONE, END = "GET /api/v0/instances/[0-9]+/", "DELETE /api/v0/instances/[0-9]+/"
    BILL, PRICES = "GET /api/v0/charges/", "POST /api/v0/bundles/"

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        super().__init__()
        made = stack.enter_context(vast_rig.vast(folder))
        self.standin, self.clock, self.compute = made.standin, made.clock, made.compute
        self.faults, self.server = self.standin.faults, self.standin.server
        self.key = self.standin.api_key

    def on(self, seconds: float) -> None:
        self.standin.advance(seconds)

    def another(self) -> Compute:
        return vast_rig.build(self.standin, self.clock).compute

    def living(self) -> list[str]:
        return [each.label for each in self.standin.live()]

    def foreign(self) -> str:
        return str(self._rent({"label": "a person's own", "image": "i"}))

    def _rent(self, body: dict[str, Any]) -> int:
        world = self.standin.world
        host = next(each for each in world.hosts if not each.rented and each.gpu_name == "L4")
        return world.create(host, body).id

    def twice(self, asked: Asked, carry_out: CarryOut) -> Answer:
        answer = carry_out()
        self._rent(asked.json())
        return answer

    def refusal(self, status: int, text: str) -> Answer:
        data = {"success": False, "error": "refused", "msg": text}
        return Answer(status, json.dumps(data).encode())

    def rows(self, data: Any) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = data["instances"]
        return found

    def name_of(self, row: Mapping[str, Any]) -> str:
        return str(row["label"])

    def set_status(self, row: dict[str, Any], status: str) -> None:
        row["actual_status"] = status

    def unpacked(self, body: Any) -> Iterator[str]:
        """The agent's words are cut into numbered variables."""
        yield from super().unpacked(body)
        env = body["env"] if isinstance(body, dict) and "args" in body else {}
        pieces = [env[name] for n in range(len(env)) if (name := f"{ENV_PIECE}{n}") in env]
        if pieces:
            told = zlib.decompress(base64.b64decode("".join(pieces)))
            yield from super().unpacked(json.loads(told))

    def small_pages(self) -> None:
        """It gives 25 in a page at the least."""
        for number in range(30):
            world = self.standin.world
            world.create(world.hosts[number + 60], {"label": f"other-{number}", "image": "i"})

    def no_capacity(self) -> web.Fault:
        self.standin.set(taken=99)
        return web.Fault(self.CREATE, carried_out, times=math.inf)

    def no_money(self) -> web.Fault:
        self.standin.world.credit = 0.0
        return web.Fault(self.CREATE, carried_out)

    def price_rose(self) -> web.Fault:
        for host in self.standin.world.hosts:
            host.dph_base *= 2
        return web.Fault(self.PRICES, carried_out)

    def billed_dearer(self) -> web.Fault:
        def dearer(data: Any) -> Any:
            for row in self.rows(data):
                row["dph_base"], row["dph_total"] = 2 * row["dph_base"], 2 * row["dph_total"]
            return data

        return web.Fault(self.LIST, web.changed(dearer), times=math.inf)

    def bill_late(self) -> web.Fault:
        self.standin.set(no_charges=True)
        return web.Fault(self.BILL, carried_out, times=math.inf)

    CAN: ClassVar[Injections] = {
        **_HTTP,
        **_ONE_FAILS,
        Fault.NO_CAPACITY: no_capacity,
        Fault.NO_MONEY: no_money,
        Fault.PRICE_ROSE: price_rose,
        Fault.BILLED_DEARER: billed_dearer,
        Fault.BILL_LATE: bill_late,
    }
    LACKS: ClassVar[Reasons] = {
        Fault.LOG_GONE: "its list says what a host complains of: no log is read for that"
    }


class HuggingFaceRig(HttpRig):
    name = "huggingface"
    omitted = "listed"
    CREATE, LIST = "POST /api/jobs/stand-in", "GET /api/jobs/stand-in"
    ONE, END = "GET /api/jobs/stand-in/[^/]+", "POST /api/jobs/stand-in/[^/]+/cancel"
    BILL, PRICES = ONE, "GET /api/jobs/hardware"

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        super().__init__()
        made = stack.enter_context(huggingface_rig.hub_rig())
        made.hub.hardware["l4x1"] |= {"unitCostMicroUSD": 490_000, "unitLabel": "hour"}
        self._made, self.hub, self.clock, self.compute = made, made.hub, made.clock, made.compute
        self.faults, self.server = made.standin.faults, made.standin.server
        self.key = made.standin.token

    def on(self, seconds: float) -> None:
        self._made.on(seconds)

    def another(self) -> Compute:
        return huggingface_rig.another(self._made.standin, self.clock).compute

    def living(self) -> list[str]:
        return [job.name for job in self.hub.live()]

    def foreign(self) -> str:
        labels = {"trmcloud": "pod", "name": "daily"}
        with self.hub.lock:
            return self.hub.start({"command": ["x"], "dockerImage": "i", "labels": labels}).id

    def refusal(self, status: int, text: str) -> Answer:
        return Answer(status, json.dumps({"error": text}).encode())

    def rows(self, data: Any) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = data
        return found

    def name_of(self, row: Mapping[str, Any]) -> str:
        return str(row["labels"].get("name", ""))

    def set_status(self, row: dict[str, Any], status: str) -> None:
        row["status"]["stage"] = status

    def small_pages(self) -> None:
        self.hub.knobs.page = 1

    def no_capacity(self) -> web.Fault:
        self.hub.knobs.no_capacity = True
        return web.Fault(self.CREATE, carried_out)

    def no_money(self) -> web.Fault:
        self.hub.knobs.credits_usd = 0.0
        return web.Fault(self.CREATE, carried_out)

    def price_rose(self) -> web.Fault:
        self.hub.hardware["l4x1"]["unitCostMicroUSD"] *= 2
        return web.Fault(self.PRICES, carried_out, times=math.inf)

    def boots_badly(self, pod_id: str) -> None:
        self.on(10)
        self.compute.list_pods()
        job = self.hub.jobs[pod_id]
        job.log.append((self.now(), "trmcloud: there is no python3 in this image"))
        self.hub.exited(job, 1)

    def why(self, pod_id: str) -> str:
        self.on(5)
        (pod,) = self.compute.list_pods()
        assert pod.gone
        return pod.never_made

    CAN: ClassVar[Injections] = {
        **_HTTP,
        **_ONE_FAILS,
        Fault.NO_CAPACITY: no_capacity,
        Fault.NO_MONEY: no_money,
        Fault.PRICE_ROSE: price_rose,
        Fault.BILLED_DEARER: price_rose,
        Fault.LOG_GONE: lambda rig: web.Fault("GET .*/logs", web.answered(404, "{}"), math.inf),
    }
    LACKS: ClassVar[Reasons] = {
        Fault.BILL_LATE: "it keeps no record of charges: a bill is reckoned from the job"
    }


# -- SkyPilot ------------------------------------------------------------------------------------


def printed(code: int, text: str, complaint: str = "") -> Callable[[Asked, CarryOut], Answer]:
    """End with ``code``, print so, and carry nothing out."""
    return lambda asked, carry_out: Answer(code, text.encode(), headers={"said": complaint})


NO_MACHINE = "sky.exceptions.ResourcesUnavailableError: nothing at this price"
SOLD_OUT, RESET = printed(1, "", NO_MACHINE), printed(1, "", "Connection reset")
NOTHING, ENDING = printed(0, "[]"), printed(0, "Terminating cluster...done")
NO_LOG = printed(1, "", "RuntimeError: no log")


class SkyPilotRig(Rig):
    name = "skypilot"
    omitted = "missed"
    CREATE, LIST = "sky launch .*", "sky status .*"

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        super().__init__()
        self._rig = sky_rig.Rig(folder)
        self.faults = self._rig.sky.faults
        self.compute = self._rig.compute()

    def now(self) -> float:
        return self._rig.now

    def on(self, seconds: float) -> None:
        self._rig.on(seconds)

    def another(self) -> Compute:
        return self._rig.compute()

    def living(self) -> list[str]:
        return list(self._rig.told().get("clusters", {}))

    def foreign(self) -> str:
        return "somebodys-cluster"

    foreign_id = "somebodys-cluster"

    def _also_forgotten(self) -> None:
        """Nor can its server say what it was asked for."""
        down = printed(1, "", "sky.exceptions.ApiServerConnectionError: Could not connect")
        self.faults.put(web.Fault("sky api status -a .*", down))

    def create_lost(self) -> web.Fault:
        self._also_forgotten()
        said = Answer(1, b"", headers={"said": "Connection reset"})
        return web.Fault(self.CREATE, web.after_it_was_done(lambda answer: said))

    def create_garbled(self, body: bytes) -> web.Fault:
        self._also_forgotten()
        return web.Fault(self.CREATE, web.after_it_was_done(lambda answer: Answer(0, body)))

    def price_rose(self) -> web.Fault:
        """Its catalogue is held against the limit that the task carries."""

        def strike(asked: Asked, carry_out: CarryOut) -> Answer:
            task = json.loads(Path(asked.path.split()[-1]).read_text())
            assert task["resources"]["max_hourly_cost"] == float(RATE.plain())
            return SOLD_OUT(asked, carry_out)

        return web.Fault(self.CREATE, strike)

    def list_fails(self, times: float = math.inf) -> web.Fault:
        """What it last knew could be listed all the same, and is no list."""
        down = printed(1, "", "sky.exceptions.ApiServerConnectionError: Could not connect")
        return web.Fault("sky status .* -r .*", down, times=math.inf)

    def status_new(self) -> web.Fault:
        def spoil(data: Any) -> Any:
            return [row | {"status": "A_NEW_WORD", "init_kind": None} for row in data]

        return web.Fault(self.LIST, web.changed(spoil), times=math.inf)

    def end_not_found(self) -> web.Fault:
        said = printed(0, "Cluster(s) not found (tip: see `sky status`).")
        self.faults.put(web.Fault("sky api status (?!-a).*", NOTHING, math.inf))
        return web.Fault("sky down .*", said, times=math.inf)

    def boots_badly(self, pod_id: str) -> None:
        self._rig.set(none_left="no quota")
        self.on(60)

    def why(self, pod_id: str) -> str:
        self.on(30)
        return next((pod.never_made for pod in self.compute.list_pods()), "")

    CAN: ClassVar[Injections] = {
        Fault.CREATE_FAILS: lambda rig: web.Fault(rig.CREATE, RESET, math.inf),
        Fault.CREATE_LOST: create_lost,
        Fault.CREATE_GARBLED: create_garbled,
        Fault.NO_CAPACITY: lambda rig: web.Fault(rig.CREATE, SOLD_OUT, math.inf),
        Fault.PRICE_ROSE: price_rose,
        Fault.LIST_FAILS: list_fails,
        Fault.LIST_GARBLED: lambda rig, body: web.Fault(
            rig.LIST, printed(0, body.decode()), math.inf
        ),
        Fault.LIST_OMITS: lambda rig, name, times=math.inf: web.Fault(rig.LIST, NOTHING, times),
        Fault.STATUS_NEW: status_new,
        Fault.FOREIGN: lambda rig: web.Fault(rig.LIST, carried_out),
        Fault.END_FAILS: lambda rig: web.Fault("sky down .*", RESET, math.inf),
        Fault.END_NOT_FOUND: end_not_found,
        Fault.END_IN_VAIN: lambda rig: web.Fault("sky down .*", ENDING, math.inf),
        Fault.BILL_FAILS: lambda rig: web.Fault("sky cost-report .*", RESET, math.inf),
        Fault.BILL_LATE: lambda rig: web.Fault("sky cost-report .*", NOTHING, math.inf),
        Fault.LOG_GONE: lambda rig: web.Fault("sky api logs .*", NO_LOG, math.inf),
    }
    LACKS: ClassVar[Reasons] = {
        Fault.CREATE_DROPPED: "a command that ended early looks like one that failed",
        Fault.CREATE_REFUSED: "its command has no statuses, and says in words why it failed",
        Fault.CREATE_THROTTLED: "SkyPilot itself waits where a cloud limits its requests",
        Fault.UNPLUGGED: "whether its server took a launch cannot be told from the command's end",
        Fault.NO_MONEY: "a cloud without credit has no machine that could be rented",
        Fault.BILLED_DEARER: "it does not say what a cluster is billed at",
        Fault.THROTTLED: "SkyPilot itself waits where a cloud limits its requests",
        Fault.KEY_REVOKED: "credentials are looked at by sky check, before a launch",
        Fault.LIST_ROW_UNNAMED: "its list is asked for by name: other rows are not ours",
        Fault.LIST_CUT: "its list has no pages",
        Fault.ONE_FAILS: "a cluster is asked for by the list alone",
        Fault.TWIN: "a cluster's name is its id",
        Fault.END_FORBIDDEN: "its command has no statuses, and says in words why it failed",
    }


RIGS: Mapping[str, type[Rig]] = {
    each.name: each for each in (RunPodRig, VastRig, HuggingFaceRig, SkyPilotRig)
}
NO_SELLER = {
    "local": "its pods are processes of this machine: no seller answers, and none can be lost",
}
"""Providers of the registry that cannot show any of these faults, with the reason."""
