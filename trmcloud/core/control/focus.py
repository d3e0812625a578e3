"""A month's spending as rows of FOCUS 1.0, the FinOps Open Cost and Usage Specification. Pure.

One row for each settled amount: a machine between its order and its end, a volume, a bucket's rent.
What is only reserved is no charge yet, and has no row. Columns and their order are those of the
specification (focus.finops.org); what it calls a sub account is a project here.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Sequence

from trmcloud.core.clock import rfc3339
from trmcloud.core.control.budget import LedgerState
from trmcloud.core.control.grants import OWNER
from trmcloud.core.control.month import BUCKETS, COMPUTE, VOLUMES, Item, month_items
from trmcloud.core.money import ZERO, Usd, total

COLUMNS = (
    "AvailabilityZone", "BilledCost", "BillingAccountId", "BillingAccountName", "BillingCurrency",
    "BillingPeriodEnd", "BillingPeriodStart", "ChargeCategory", "ChargeClass",
    "ChargeDescription", "ChargeFrequency", "ChargePeriodEnd", "ChargePeriodStart",
    "CommitmentDiscountCategory", "CommitmentDiscountId", "CommitmentDiscountName",
    "CommitmentDiscountStatus", "CommitmentDiscountType", "ConsumedQuantity", "ConsumedUnit",
    "ContractedCost", "ContractedUnitPrice", "EffectiveCost", "InvoiceIssuerName", "ListCost",
    "ListUnitPrice", "PricingCategory", "PricingQuantity", "PricingUnit", "ProviderName",
    "PublisherName", "RegionId", "RegionName", "ResourceId", "ResourceName", "ResourceType",
    "ServiceCategory", "ServiceName", "SkuId", "SkuPriceId", "SubAccountId", "SubAccountName",
    "Tags",
)  # fmt: skip
_SERVICES = {
    COMPUTE: ("Compute", "GPU machines", "machine"),
    VOLUMES: ("Storage", "Network volumes", "volume"),
    BUCKETS: ("Storage", "Object storage", "bucket"),
}
_UNKNOWN = ("Compute", "Machines without a run", "machine")
_LEAST_S = 1.0


def focus_rows(ledger: LedgerState, month: str) -> list[dict[str, str]]:
    """Return the rows of ``month`` (``2026-11``), the earliest first; an empty text is null.

    Estimates stand there, too: their tag ``trmcloud/bill`` is ``estimate`` until the provider's
    bill is final, and a later file has the bill.
    """
    year, number = (int(part) for part in month.split("-"))
    begins = dt.datetime(year, number, 1, tzinfo=dt.timezone.utc)
    ends = dt.datetime(year + number // 12, number % 12 + 1, 1, tzinfo=dt.timezone.utc)
    period = begins.timestamp(), ends.timestamp()
    items = [item for item in month_items(ledger, month) if item.spent > ZERO]
    rows = [_row(ledger, item, period) for item in items]
    return sorted(rows, key=lambda row: (row["ChargePeriodStart"], row["ResourceName"]))


def _row(ledger: LedgerState, item: Item, period: tuple[float, float]) -> dict[str, str]:
    begins, ends = period
    # A run counts towards one month whole: the part beyond its end is charged in its last second.
    since = min(max(item.since if item.since is not None else begins, begins), ends - _LEAST_S)
    until = min(max(item.at if item.at is not None else since, since + _LEAST_S), ends)
    hours = f"{(until - since) / 3600:.6f}"
    cost = item.spent.plain()
    category, service, kind = _SERVICES.get(item.kind, _UNKNOWN)
    run = ledger.runs.get(item.run_id)
    chosen = run.chosen if run is not None else None
    hardware = chosen.hardware if chosen is not None and item.kind == COMPUTE else ""
    tags = dict(run.tags) if run is not None else {}
    tags |= {
        "trmcloud/run": item.run_id,
        "trmcloud/principal": (run.payer.principal if run is not None else "") or OWNER,
        "trmcloud/bill": "estimate" if item.at_most > ZERO else "final",
    }
    made = dict.fromkeys(COLUMNS, "")
    return made | {
        "BilledCost": cost,
        "BillingAccountId": ledger.ledger_id,
        "BillingCurrency": "USD",
        "BillingPeriodEnd": rfc3339(ends),
        "BillingPeriodStart": rfc3339(begins),
        "ChargeCategory": "Usage",
        "ChargeDescription": f"{service}: {hardware or item.provider}",
        "ChargeFrequency": "Usage-Based",
        "ChargePeriodEnd": rfc3339(until),
        "ChargePeriodStart": rfc3339(since),
        "ConsumedQuantity": hours,
        "ConsumedUnit": "Hours",
        "ContractedCost": cost,
        "EffectiveCost": cost,
        "InvoiceIssuerName": item.provider,
        "ListCost": cost,
        "PricingCategory": "Standard",
        "PricingQuantity": hours,
        "PricingUnit": "Hours",
        "ProviderName": item.provider,
        "PublisherName": item.provider,
        "ResourceId": item.run_id or item.provider,
        "ResourceName": (run.name if run is not None else "") or item.run_id or item.provider,
        "ResourceType": kind,
        "ServiceCategory": category,
        "ServiceName": service,
        "SkuId": hardware or kind,
        "SkuPriceId": f"{item.provider}/{hardware or kind}",
        "SubAccountId": item.project,
        "SubAccountName": item.project,
        "Tags": json.dumps(tags, sort_keys=True, ensure_ascii=False),
    }


def total_of(rows: Sequence[dict[str, str]]) -> Usd:
    """The sum of the rows' costs."""
    return total(Usd(row["BilledCost"]) for row in rows)
