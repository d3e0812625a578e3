"""REST v2: billing records, cut into buckets and late by a lag."""

from __future__ import annotations

import calendar
import datetime
import time
from typing import Any

from tests.standins.runpod import billing
from tests.standins.runpod.http_types import problem, reply
from tests.standins.runpod.world import Context
from tests.standins.web import Answer, Asked

DEFAULT_DAYS = 30
POD_PARTS = ("totalAmount", "gpuAmount", "cpuAmount", "diskAmount")


class Billing:
    def __init__(self, world: Context) -> None:
        self._world = world

    def pods(self, asked: Asked) -> Answer:
        window = self._window(asked)
        if isinstance(window, Answer):
            return window
        start, end, size, known = window
        only = asked.query.get("podId")
        records: list[dict[str, Any]] = []
        for low, high in billing.buckets(start, end, size):
            for pod in self._world.all_pods():
                if only not in (None, pod.id):
                    continue
                compute, disk = (
                    after - before
                    for after, before in zip(
                        pod.meter.amounts(min(high, known)),
                        pod.meter.amounts(min(low, known)),
                        strict=True,
                    )
                )
                if compute + disk <= 0:
                    continue
                amounts = zip(POD_PARTS, (compute + disk, compute, 0.0, disk), strict=True)
                records.append({**_span(low, high), "podId": pod.id, **dict(amounts)})
        metadata = {
            "query": {**_span(start, end), "bucketSize": size, "podId": only},
            "recordCount": len(records),
            "totals": {part: sum(record[part] for record in records) for part in POD_PARTS},
            "uniquePodCount": len({record["podId"] for record in records}),
        }
        return reply({"records": records, "metadata": metadata})

    def _window(self, asked: Asked) -> tuple[float, float, str, float] | Answer:
        """(start, end, bucket size, until when the books are written)."""
        now, query = self._world.settle(), asked.query
        size = query.get("bucketSize", "day")
        if size not in billing.BUCKETS:
            return problem(422, "Request validation failed.", ["bucketSize: hour or day"])
        if "lastN" in query:
            if "startTime" in query or "endTime" in query:
                return problem(400, "lastN and startTime/endTime exclude each other")
            if not query["lastN"].isdigit() or int(query["lastN"]) < 1:
                return problem(422, "Request validation failed.", ["lastN: at least 1"])
            end = billing.bucket_start(now, size) + billing.BUCKETS[size]
            start = end - int(query["lastN"]) * billing.BUCKETS[size]
        else:
            try:
                ended = _moment(query["endTime"]) if "endTime" in query else now
                default = ended - DEFAULT_DAYS * 86400
                begun = _moment(query["startTime"]) if "startTime" in query else default
            except ValueError:
                return problem(422, "Request validation failed.", ["time: RFC 3339"])
            start = billing.bucket_start(begun, size)
            end = -billing.bucket_start(-ended, size)
        return start, end, size, now - self._world.knobs.billing_lag_s


def _span(start: float, end: float) -> dict[str, str]:
    first, last = (time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at)) for at in (start, end))
    return {"startTime": first, "endTime": last}


def _moment(text: str) -> float:
    moment = datetime.datetime.fromisoformat(text.replace("Z", "+00:00"))
    if moment.tzinfo is None:
        raise ValueError(text)
    return calendar.timegm(moment.utctimetuple()) + moment.microsecond / 1e6
