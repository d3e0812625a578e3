"""Each question that RunPod is asked, and what its answer is read as, by REST and by GraphQL."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx2 as httpx
import pytest

from tests.present import present
from tests.unit.runpod.conftest import Scripted, pod_record, problem, said
from trmcloud.core.control.balance import AccountBalance
from trmcloud.core.control.observation import PodSeen, PodStatus
from trmcloud.core.errors import AccessDenied, AuthError, ProviderError
from trmcloud.core.money import Usd
from trmcloud.providers.runpod.account import GraphqlUnavailable, RunPodGraphql
from trmcloud.providers.runpod.api import RunPodApi

# -- Each question that RunPod is asked, and what its answer is read as -------------------------


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
def test_a_list_takes_less_than_a_minute(runpod: Scripted, each_s: float, pages: int) -> None:
    runpod.each_s = each_s
    runpod.answers = [endless(runpod, 9)]
    assert refused(runpod) == "it was not read within 60 s"
    assert len(runpod.asked) == pages


def test_pages_that_lead_in_a_circle_are_no_list(runpod: Scripted) -> None:
    told = {"nextCursor": "c", "hasNextPage": True}
    runpod.answers = [said(200, {"pods": [], "pagination": told})]
    assert refused(runpod) == "its pages repeat"


def test_a_pod_is_read_by_its_id(runpod: Scripted) -> None:
    runpod.answers = [said(200, pod_record())]
    assert present(runpod.api().pod("abc123")).id == "abc123"
    assert asked(runpod) == ("GET", "/v2/pods/abc123", {})


def test_bills_are_asked_for_by_the_hour_of_one_pod_or_of_all(runpod: Scripted) -> None:
    runpod.answers = [said(200, {"records": []})]
    hours = {
        "startTime": "1970-01-01T00:00:01Z", "endTime": "1970-01-01T00:00:02Z",
        "bucketSize": "hour",
    }  # fmt: skip
    for more, of_one in (({"pod_id": "abc123"}, {"podId": "abc123"}), ({}, {})):
        runpod.asked.clear()
        assert runpod.api().billing(starts_at=1.0, ends_at=2.0, **more) == []
        assert asked(runpod) == ("GET", "/v2/billing/pods", hours | of_one)


# -- creates and ends --------------------------------------------------------------------------


def test_the_end_of_a_volume_that_is_gone_is_no_error(runpod: Scripted) -> None:
    runpod.answers = [said(204), problem(404, "no such volume")]
    api = runpod.api()
    assert [api.delete_volume("v1") for _ in range(2)] == [True, False]


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


# -- graphql ------------------------------------------------------------------------------------
# What GraphQL answers, taken apart: its account, its list of pods, and its errors in a 200. The
# fields are those of RunPod's published schema; its own SDK reads the same ones.


URL = "https://api.runpod.test/graphql"
POD = {"id": "abc", "name": "trmc-x", "desiredStatus": "RUNNING", "costPerHr": 1.79}


def graphql(runpod: Scripted, *answers: Any) -> RunPodGraphql:
    runpod.answers = [a if hasattr(a, "status_code") else said(200, a) for a in answers]
    return RunPodGraphql(runpod.http(), URL)


def myself(**fields: Any) -> dict[str, Any]:
    return {"data": {"myself": fields}}


def test_the_account_is_read_to_the_cent_and_each_amount_for_what_it_is(runpod: Scripted) -> None:
    answer = myself(clientBalance=12.345678, currentSpendPerHr=0.5, spendLimit=80)
    account = graphql(runpod, answer).account()
    assert account == AccountBalance(Usd("12.345678"), Usd("0.5"), Usd("80"))
    assert "clientBalance" in json.loads(runpod.asked[0].content)["query"]
    assert runpod.asked[0].method == "POST"
    assert str(runpod.asked[0].url) == URL


def test_a_balance_is_exact_and_a_rate_is_what_a_32_bit_float_stands_for(runpod: Scripted) -> None:
    answer = myself(clientBalance=1234567.89, currentSpendPerHr=1.7899999618530273,
                    spendLimit=1234567.89)  # fmt: skip
    account = graphql(runpod, answer).account()
    assert account.balance == Usd("1234567.89")
    assert account.spending == Usd("1.79")
    assert account.spend_limit == Usd("1234567.9")


def test_what_is_not_told_is_not_known(runpod: Scripted) -> None:
    answer = myself(clientBalance=None, currentSpendPerHr=0)
    assert graphql(runpod, answer).account() == AccountBalance(None, Usd(0), None)


@pytest.mark.parametrize("amount", ["12.5", True, False, [1], {}])
def test_an_amount_that_is_no_number_is_refused_by_its_name(runpod: Scripted, amount: Any) -> None:
    with pytest.raises(ProviderError, match="has a new form: spendLimit"):
        graphql(runpod, myself(clientBalance=1.0, spendLimit=amount)).account()


def test_pods_are_listed_and_none_is_believed_to_run(runpod: Scripted) -> None:
    ended = {**POD, "id": "def", "desiredStatus": "TERMINATED", "costPerHr": 0}
    assert graphql(runpod, myself(pods=[POD, ended])).pods() == [
        PodSeen("abc", "trmc-x", PodStatus.UNKNOWN, Usd("1.79")),
        PodSeen("def", "trmc-x", PodStatus.GONE, Usd(0)),
    ]
    assert "costPerHr" in json.loads(runpod.asked[0].content)["query"]


@pytest.mark.parametrize("cost", [None, 0, -1.0, "1.79", True, [1]])
def test_an_impossible_rate_costs_nothing_and_hides_no_pod(runpod: Scripted, cost: Any) -> None:
    (pod,) = graphql(runpod, myself(pods=[{**POD, "costPerHr": cost}])).pods()
    assert (pod.pod_id, pod.rate) == ("abc", Usd(0))


@pytest.mark.parametrize(
    ("pods", "what"),
    [
        (None, "pods"),
        ({"id": "abc"}, "pods"),
        ([POD, "abc"], "pods"),
        ([{**POD, "id": ""}], "pods.id"),
        ([{**POD, "id": 7}], "pods.id"),
        ([{**POD, "id": None}], "pods.id"),
        ([{**POD, "name": None}], "pods.id"),
        ([{**POD, "name": 7}], "pods.id"),
    ],
)
def test_a_list_of_which_a_part_is_odd_is_none(runpod: Scripted, pods: Any, what: str) -> None:
    """A pod that is missing from a list counts as gone."""
    with pytest.raises(ProviderError) as odd:
        graphql(runpod, myself(pods=pods)).pods()
    assert odd.value.what.endswith(f"has a new form: {what}")
    assert odd.value.where == "RunPod, POST /graphql"


@pytest.mark.parametrize(
    "answer", [{}, {"data": None}, {"data": []}, {"data": {"myself": None}}, {"data": {}}]
)
def test_an_answer_without_an_account_is_none(runpod: Scripted, answer: Any) -> None:
    with pytest.raises(ProviderError, match="has a new form: myself"):
        graphql(runpod, answer).account()


@pytest.mark.parametrize(("code", "kind"), [(410, 410), (404, 404), (429, 429)])
def test_retirement_is_told_from_money_and_key(runpod: Scripted, code: int, kind: int) -> None:
    with pytest.raises(GraphqlUnavailable, match=f"answers {kind}"):
        graphql(runpod, problem(code, "no more")).account()


def test_a_wrong_key_and_an_outage_are_what_they_are(runpod: Scripted) -> None:
    with pytest.raises(AuthError):
        graphql(runpod, problem(401, "no")).account()
    with pytest.raises(ProviderError) as outage:
        graphql(runpod, problem(503, "later")).account()
    assert not isinstance(outage.value, GraphqlUnavailable)


@pytest.mark.parametrize(
    ("bound_s", "each_s", "times"), [(None, 0.6, 4), (None, 0.9, 3), (2.0, 0.6, 2)]
)
def test_it_is_not_waited_for_beyond_six_seconds_or_what_is_asked(
    runpod: Scripted, bound_s: float | None, each_s: float, times: int
) -> None:
    """Between tries it waits for half a second, one, two: a fourth fits in where each takes 0.6."""
    runpod.each_s = each_s
    client = graphql(runpod, problem(503, "later"))
    bound = {} if bound_s is None else {"bound_s": bound_s}
    with pytest.raises(ProviderError):
        client.account(**bound)
    assert len(runpod.asked) == times
    if bound_s is None:
        runpod.asked.clear()
        with pytest.raises(ProviderError):
            client.pods()
        assert len(runpod.asked) == times


@pytest.mark.parametrize(
    ("errors", "error", "says"),
    [
        ([{"message": "Unauthorized."}], AccessDenied, "key does not permit this: Unauthorized."),
        (
            [{"message": "no", "extensions": {"code": "FORBIDDEN"}}],
            AccessDenied,
            "key does not permit this: no; FORBIDDEN",
        ),
        ([{"message": "too complex"}, {"message": "b"}], ProviderError, "RunPod: too complex; b"),
        ([{"extensions": {"code": "X"}}, "plain"], ProviderError, "RunPod: plain; X"),
        ([{"message": "a", "extensions": []}], ProviderError, "RunPod: a"),
        ({"message": "one"}, ProviderError, "RunPod: one"),
        ("in a word", ProviderError, "RunPod: in a word"),
        ([{}], ProviderError, "RunPod: an error"),
    ],
)
def test_errors_in_a_200_are_said_in_one_line(
    runpod: Scripted, errors: Any, error: type[ProviderError], says: str
) -> None:
    answer = {**myself(clientBalance=1.0), "errors": errors}
    with pytest.raises(error) as refused:
        graphql(runpod, answer).account()
    assert type(refused.value) is error
    assert refused.value.what.endswith(says)


def test_a_rate_below_a_dollar_is_one(runpod: Scripted) -> None:
    (pod,) = graphql(runpod, myself(pods=[{**POD, "costPerHr": 0.19}])).pods()
    assert pod.rate == Usd("0.19")


def test_no_errors_are_none(runpod: Scripted) -> None:
    account = graphql(runpod, {**myself(clientBalance=1.0), "errors": []}).account()
    assert account.balance == Usd(1)
