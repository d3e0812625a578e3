"""Records of REST v2, as far as they are read.

Unknown fields pass; what identifies a thing must be right, since a record that cannot be told
apart could be a pod of ours that spends; all the rest becomes None where it is not what the
contract says.
"""

from __future__ import annotations

import math
import struct
from datetime import datetime, timezone
from decimal import Decimal
from typing import Annotated, Any, TypeVar

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError, WrapValidator
from pydantic_core.core_schema import ValidatorFunctionWrapHandler

from trmcloud.core.control.balance import Billing
from trmcloud.core.errors import ProviderError
from trmcloud.core.money import Usd
from trmcloud.core.storage import price_per_hour

_T = TypeVar("_T")


def _or_none(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
    try:
        return handler(value)
    except ValidationError:
        return None


Lenient = Annotated[_T | None, WrapValidator(_or_none)]


class _Record(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, strict=True, allow_inf_nan=False)


class Endpoint(_Record):
    host: str = Field(min_length=1, max_length=253)
    port: int = Field(ge=1, le=65535)


class Ssh(_Record):
    direct: Lenient[Endpoint] = None


class Gpu(_Record):
    id: str
    count: int = 1


class PersistentDisk(_Record):
    size: int = Field(ge=0, le=1 << 20)


class Mounts(_Record):
    persistent: Lenient[PersistentDisk] = None


class Pod(_Record):
    """``disk`` is GB; ``cost`` is USD per hour, 0 for a pod that was stopped."""

    id: str = Field(pattern=r"^[A-Za-z0-9_-]+$")
    name: str
    status: Lenient[str] = None
    cost: Lenient[float] = None
    createdAt: Lenient[str] = None
    startedAt: Lenient[str] = None
    dataCenterId: Lenient[str] = None
    gpu: Lenient[Gpu] = None
    ssh: Lenient[Ssh] = None
    disk: Lenient[int] = None
    mounts: Lenient[Mounts] = None

    @property
    def _work_gb(self) -> int:
        persistent = self.mounts.persistent if self.mounts is not None else None
        return persistent.size if persistent is not None else 0

    @property
    def disk_gb(self) -> int:
        """The size of its own disks together: they are billed beside ``cost``."""
        return max(0, self.disk or 0) + self._work_gb

    @property
    def disk_rate(self) -> Usd:
        """USD per hour of its own disks: all of a running pod's, a stopped one's volume."""
        if self.status == "EXITED":
            return price_per_hour("runpod", "stopped", self._work_gb)
        return price_per_hour("runpod", "running", self.disk_gb)

    @property
    def rate(self) -> Usd | None:
        """USD per hour; None where it was not said."""
        return usd(self.cost) if self.cost is not None and self.cost >= 0 else None

    @property
    def address(self) -> tuple[str, int] | None:
        """(host, port) of its own SSH server; None until RunPod has named it."""
        direct = self.ssh.direct if self.ssh is not None else None
        return (direct.host, direct.port) if direct is not None else None

    @property
    def made_at(self) -> float | None:
        return instant(self.createdAt)

    @property
    def started_at(self) -> float | None:
        return instant(self.startedAt)


class Volume(_Record):
    """``size`` is GB."""

    id: str = Field(pattern=r"^[A-Za-z0-9_-]+$")
    name: str
    size: int
    dataCenter: str


class BillingRecord(_Record):
    """One pod's cost in one bucket of time [``startTime``, ``endTime``)."""

    startTime: str
    endTime: str
    podId: str
    totalAmount: float

    @property
    def starts_at(self) -> float | None:
        return instant(self.startTime)

    @property
    def ends_at(self) -> float | None:
        return instant(self.endTime)


class _Pagination(_Record):
    nextCursor: str | None
    hasNextPage: bool


class _Pods(_Record):
    pods: list[Pod]
    pagination: _Pagination | None = None


class _Volumes(_Record):
    networkVolumes: list[Volume]
    pagination: _Pagination | None = None


class AccountMoney(_Record):
    """``GET /v2/billing/balance``, as RunPod's reference of 2026-11-18 has it: USD."""

    balanceAmount: float
    billingMode: Lenient[str] = None

    @property
    def billing(self) -> Billing:
        known = {"PREPAID": Billing.PREPAID, "POSTPAID": Billing.POSTPAID}
        return known.get(self.billingMode or "", Billing.UNKNOWN)


class SpendRate(_Record):
    """USD per hour: the limit that a start is checked against, and what is in use of it.

    The reference says that there is such an object and does not name its fields. What has none of
    these names is not known from here.
    """

    limit: Lenient[float] = Field(
        default=None, validation_alias=AliasChoices("limit", "max", "maximum")
    )
    current: Lenient[float] = Field(
        default=None, validation_alias=AliasChoices("current", "used", "usage")
    )


class _AccountLimits(_Record):
    spendRate: Lenient[SpendRate] = None


class _Billing(_Record):
    records: list[BillingRecord]


def read_account_money(data: Any, where: str) -> AccountMoney:
    return _read(AccountMoney, data, where)


def read_spend_rate(data: Any, where: str) -> SpendRate:
    return _read(_AccountLimits, data, where).spendRate or SpendRate()


def read_pod(data: Any, where: str) -> Pod:
    return _read(Pod, data, where)


def read_pods(data: Any, where: str) -> tuple[list[Pod], str | None]:
    """(the pods of one page, the cursor of the next): all of the page or none, since a list with a
    hole must not pass for one in which a pod is missing. None: there is no next page. What does
    not speak of pages is the whole.

    Raises:
        ProviderError: it is no page, or says that there is more and not where.
    """
    page = _read(_Pods, data, where)
    return page.pods, _next_cursor(page.pagination, where)


def _next_cursor(pagination: _Pagination | None, where: str) -> str | None:
    if pagination is None or not pagination.hasNextPage:
        return None
    if not pagination.nextCursor:
        raise ProviderError(
            "RunPod's list has more pages, but no address for the next one",
            where=where,
            next_step="try again; if this happens again, RunPod's API has changed",
        )
    return pagination.nextCursor


def read_volume(data: Any, where: str) -> Volume:
    return _read(Volume, data, where)


def read_volumes(data: Any, where: str) -> tuple[list[Volume], str | None]:
    """Return the network volumes of one page and the cursor of the next, as ``read_pods``."""
    page = _read(_Volumes, data, where)
    return page.networkVolumes, _next_cursor(page.pagination, where)


def read_billing(data: Any, where: str) -> list[BillingRecord]:
    return _read(_Billing, data, where).records


_R = TypeVar("_R", bound=_Record)


def _read(kind: type[_R], data: Any, where: str) -> _R:
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "the whole"
        raise ProviderError(
            f"RunPod's answer does not match its API contract: {place}: {first['msg']}",
            where=where,
            next_step="try again; if this happens again, RunPod's API has changed",
        ) from None


def usd(number: float) -> Usd:
    """Dollars of a JSON number that the contract calls a 32-bit float.

    The shortest decimal that this float can stand for: 1.7899999618530273 is 1.79, and not a
    micro-dollar more than was planned.
    """
    if not math.isfinite(number) or abs(number) > 1e9:
        raise ProviderError(f"RunPod's answer has an impossible amount: {number!r}")
    packed = struct.pack("f", number)
    (sent,) = struct.unpack("f", packed)
    texts = (f"{sent:.{digits}g}" for digits in range(1, 10))  # nine tell any two floats apart
    return Usd.rounded_up(Decimal(next(t for t in texts if struct.pack("f", float(t)) == packed)))


def usd_exact(number: float) -> Usd:
    """Dollars of a JSON number that the contract calls a double, rounded up to a micro-dollar."""
    if not math.isfinite(number) or abs(number) > 1e9:
        raise ProviderError(f"RunPod's answer has an impossible amount: {number!r}")
    return Usd.rounded_up(Decimal(repr(number)))


def instant(text: str | None) -> float | None:
    """Epoch seconds of RFC 3339 text; None where it is something else."""
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=timezone.utc)
    return moment.timestamp()
