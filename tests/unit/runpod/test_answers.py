"""Each question that RunPod is asked, and what its answer is read as."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx2 as httpx
import pytest

from tests.unit.runpod.conftest import Scripted, pod_record, problem, said
from trmcloud.core.errors import (
    AccessDenied,
    AmbiguousCreate,
    NoCapacity,
    ProviderError,
    ProviderRefused,
)
from trmcloud.providers.runpod.api import RunPodApi
from trmcloud.providers.runpod.models import BillingRecord, Volume

VOLUME = {"id": "v1", "name": "trmc-x", "size": 50, "dataCenter": "EU-RO-1"}
RECORD = {
    "startTime": "2027-01-15T08:00:00Z", "endTime": "2027-01-15T09:00:00Z",
    "podId": "abc123", "totalAmount": 1.5,
}  # fmt: skip
NONE_FREE = "There are no longer any instances available."


def asked(runpod: Scripted) -> tuple[str, str, dict[str, str]]:
    (request,) = runpod.asked
    return request.method, request.url.path, dict(request.url.params)


def endless(runpod: Scripted, most: int) -> Callable[[httpx.Request], httpx.Response]:
    """Pages that lead on until there were as many as ``most``."""

    def page(request: httpx.Request) -> httpx.Response:
        more = len(runpod.asked) < most
        told = {"nextCursor": f"c{len(runpod.asked)}" if more else None, "hasNextPage": more}
        return said(200, {"pods": [pod_record(id=f"p{len(runpod.asked)}")], "pagination": told})

    return page


def refused(runpod: Scripted) -> str:
    with pytest.raises(ProviderError) as error:
        runpod.api().pods()
    assert error.value.where == "RunPod, GET /v2/pods"
    return error.value.what.removeprefix("RunPod's list of pods does not end: ")


def test_twenty_pages_are_a_list_and_more_are_not_believed_to_end(runpod: Scripted) -> None:
    runpod.answers = [endless(runpod, 20)]
    assert len(runpod.api().pods()) == 20
    runpod.asked.clear()
    runpod.answers = [endless(runpod, 21)]
    assert refused(runpod) == "there is more after 20 pages"


@pytest.mark.parametrize(("each_s", "pages"), [(59.5, 2), (20.0, 3), (-0.5, 1)])
def test_a_list_takes_less_than_a_minute_by_a_clock_that_goes_on(
    runpod: Scripted, each_s: float, pages: int
) -> None:
    runpod.each_s = each_s
    runpod.answers = [endless(runpod, 9)]
    assert refused(runpod) == "it was not read within 60 s"
    assert len(runpod.asked) == pages


def test_pages_that_lead_in_a_circle_are_no_list(runpod: Scripted) -> None:
    told = {"nextCursor": "c", "hasNextPage": True}
    runpod.answers = [said(200, {"pods": [], "pagination": told})]
    assert refused(runpod) == "its pages lead in a circle"


def test_a_pod_is_read_by_its_id(runpod: Scripted) -> None:
    runpod.answers = [said(200, pod_record())]
    pod = runpod.api().pod("abc123")
    assert pod is not None
    assert pod.id == "abc123"
    assert asked(runpod) == ("GET", "/v2/pods/abc123", {})


def test_volumes_are_listed_made_grown_and_deleted(runpod: Scripted) -> None:
    volume = Volume.model_validate(VOLUME)
    api = runpod.api()
    runpod.answers = [
        said(200, {"networkVolumes": [VOLUME]}), said(201, VOLUME), said(200, VOLUME), said(204),
        problem(404, "no such volume"),
    ]  # fmt: skip
    assert api.volumes() == [volume]
    assert api.create_volume("trmc-x", 50, "EU-RO-1") == volume
    assert api.grow_volume("v1", 60) == volume
    assert api.delete_volume("v1") is True
    assert api.delete_volume("v1") is False
    assert [(r.method, r.url.path) for r in runpod.asked] == [
        ("GET", "/v2/network-volumes"),
        ("POST", "/v2/network-volumes"),
        ("PATCH", "/v2/network-volumes/v1"),
        ("DELETE", "/v2/network-volumes/v1"),
        ("DELETE", "/v2/network-volumes/v1"),
    ]


def test_bills_are_asked_for_by_the_hour_of_one_pod_or_of_all(runpod: Scripted) -> None:
    runpod.answers = [said(200, {"records": [RECORD]})]
    hours = {
        "startTime": "1970-01-01T00:00:01Z", "endTime": "1970-01-01T00:00:02Z",
        "bucketSize": "hour",
    }  # fmt: skip
    for more, params in (({"pod_id": "abc123"}, hours | {"podId": "abc123"}), ({}, hours)):
        runpod.asked.clear()
        rows = runpod.api().billing(starts_at=1.0, ends_at=2.0, **more)
        assert rows == [BillingRecord.model_validate(RECORD)]
        assert asked(runpod) == ("GET", "/v2/billing/pods", params)
    runpod.asked.clear()
    assert runpod.api().billed_lately() == rows
    assert asked(runpod) == ("GET", "/v2/billing/pods", {"bucketSize": "hour", "lastN": "2"})


def test_the_catalogue_is_given_on_as_it_came(runpod: Scripted) -> None:
    runpod.answers = [said(200, {"gpus": [1]})]
    assert runpod.api().catalogue({"product": "POD"}) == {"gpus": [1]}
    assert asked(runpod) == ("GET", "/v2/catalog/gpus", {"product": "POD"})


# -- creates and ends --------------------------------------------------------------------------


def create(runpod: Scripted, answer: Any) -> ProviderError:
    runpod.answers = [answer]
    with pytest.raises(ProviderError) as error:
        runpod.api().create_pod({"name": "x"})
    return error.value


@pytest.mark.parametrize(
    ("code", "kind"), [(400, NoCapacity), (500, NoCapacity), (409, ProviderRefused),
                       (499, ProviderRefused)],
)  # fmt: skip
def test_that_there_is_none_free_is_said_by_400_and_5xx_alone(
    runpod: Scripted, code: int, kind: type[ProviderError]
) -> None:
    assert type(create(runpod, problem(code, NONE_FREE))) is kind


@pytest.mark.parametrize(
    ("code", "kind"), [(400, ProviderRefused), (499, ProviderRefused), (399, AmbiguousCreate),
                       (500, AmbiguousCreate), (404, ProviderRefused)],
)  # fmt: skip
def test_only_a_plain_refusal_proves_that_nothing_was_made(
    runpod: Scripted, code: int, kind: type[ProviderError]
) -> None:
    assert type(create(runpod, problem(code, "why"))) is kind


def test_what_was_made_in_words_that_cannot_be_read_may_exist(runpod: Scripted) -> None:
    error = create(runpod, said(201, {"name": "no id"}))
    assert type(error) is AmbiguousCreate
    assert error.what.startswith("RunPod said it made a pod, in words that cannot be read: ")


def test_an_end_that_was_tried_both_ways_is_not_tried_a_third_time(runpod: Scripted) -> None:
    """The second way was refused already: what the first one says is the answer."""
    api = RunPodApi(runpod.http(), "https://api.runpod.test")
    runpod.answers = [said(204), problem(403, "no")]
    assert api.delete_pod("abc") is True
    with pytest.raises(AccessDenied):
        api.delete_pod("abc")
    assert [r.method for r in runpod.asked] == ["DELETE", "POST", "DELETE"]


def test_a_line_that_is_lost_has_ended_nothing(runpod: Scripted) -> None:
    runpod.answers = [problem(403, "no"), httpx.ReadError("reset")]
    with pytest.raises(AccessDenied):
        runpod.api().delete_pod("abc")
    assert len(runpod.asked) == 2
