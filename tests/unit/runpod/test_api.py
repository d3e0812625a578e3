"""What each answer of RunPod's becomes, and what is asked again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx2 as httpx
import pytest

from tests.unit.runpod.conftest import KEY, Answer, Scripted, pod_record, problem, said
from trmcloud.core.errors import (
    AccessDenied,
    AmbiguousCreate,
    AuthError,
    FinalRefusal,
    NoCapacity,
    PaymentRequired,
    ProviderError,
    ProviderRefused,
)
from trmcloud.ports.compute import ThrottledError, TransientError
from trmcloud.providers.client import NotThere
from trmcloud.providers.runpod.api import NO_CAPACITY, RunPodApi
from trmcloud.providers.runpod.http import ApiRetired, Http

# -- What each answer of RunPod's becomes, and what is asked again ------------------------------


BODY = {"name": "p", "image": "i"}
NONE_FREE = (
    "There are no longer any instances available with the requested specifications. "
    "Please refresh and try again."
)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (problem(400, NONE_FREE), NoCapacity),
        (problem(500, f"create pod: {NONE_FREE}"), NoCapacity),
        (problem(400, "create pod: There are no instances currently available."), NoCapacity),
        (problem(409, NONE_FREE), ProviderRefused),
        (problem(499, NONE_FREE), ProviderRefused),
        (problem(400, "gpu.count must not be 3"), ProviderRefused),
        (problem(401, "no"), AuthError),
        (problem(402, "insufficient balance"), PaymentRequired),
        (problem(403, "Your account cannot access the requested pool"), ProviderRefused),
        (problem(404, "volume not found"), ProviderRefused),
        (problem(409, "state"), ProviderRefused),
        (said(422, {"title": "", "status": 422, "detail": "d", "errors": ["$: x"]}), FinalRefusal),
        (problem(410, "retired"), ApiRetired),
        (problem(413, "too large"), FinalRefusal),
        (problem(429, "slow down", Retry_After="7"), ThrottledError),
        (problem(499, "why"), ProviderRefused),
        (problem(399, "why"), AmbiguousCreate),
        (problem(408, "timeout"), AmbiguousCreate),
        (problem(500, "internal server error"), AmbiguousCreate),
        (said(502, "<html>upstream connect error</html>"), AmbiguousCreate),
        (said(302, "", Location="https://elsewhere"), AmbiguousCreate),
        (said(201, "<html>"), AmbiguousCreate),
        (said(201, "[]"), AmbiguousCreate),
        (said(201, {"name": "no id"}), AmbiguousCreate),
        (said(201, ""), AmbiguousCreate),
        (httpx.ReadTimeout("late"), AmbiguousCreate),
        (httpx.RemoteProtocolError("closed"), AmbiguousCreate),
        (httpx.ReadError("reset"), AmbiguousCreate),
        (httpx.WriteError("reset"), AmbiguousCreate),
        (httpx.ConnectError("refused"), ProviderError),
        (httpx.ConnectTimeout("late"), ProviderError),
    ],
)
def test_every_answer_to_a_create_has_one_meaning(
    runpod: Scripted, answer: Answer, error: type[ProviderError]
) -> None:
    runpod.answers = [answer]
    with pytest.raises(ProviderError) as caught:
        runpod.api().create_pod(BODY)
    assert type(caught.value) is error
    assert caught.value.where == "RunPod, POST /v2/pods"
    assert caught.value.next_step
    assert len(runpod.asked) == 1, "a create is sent once"
    assert runpod.slept == []


@pytest.mark.parametrize("text", NO_CAPACITY)
@pytest.mark.parametrize("code", [400, 500])
def test_every_known_text_of_no_capacity_is_one(runpod: Scripted, code: int, text: str) -> None:
    runpod.answers = [problem(code, f"create pod: {text.capitalize()}. Please try again.")]
    with pytest.raises(NoCapacity):
        runpod.api().create_pod(BODY)


# -- pages ----------------------------------------------------------------------------------------


def page(*ids: str, cursor: str | None = None, more: bool | None = None) -> httpx.Response:
    pods = [pod_record(id=pod_id, name=pod_id) for pod_id in ids]
    goes_on = cursor is not None if more is None else more
    return said(200, {"pods": pods, "pagination": {"nextCursor": cursor, "hasNextPage": goes_on}})


def test_a_list_is_read_page_by_page_whatever_each_holds(runpod: Scripted) -> None:
    """Pages may be short or empty; a pod that moved to the next one while reading counts once."""
    runpod.answers = [page("a", "b", cursor="c1"), page(cursor="c2"), page("b", "c")]
    assert [pod.id for pod in runpod.api().pods()] == ["a", "b", "c"]
    asked = [dict(request.url.params) for request in runpod.asked]
    assert asked == [
        {"limit": "1000"},
        {"limit": "1000", "cursor": "c1"},
        {"limit": "1000", "cursor": "c2"},
    ]


def test_the_members_of_clusters_are_asked_for_on_every_page(runpod: Scripted) -> None:
    runpod.answers = [page("a", cursor="c1"), page("b")]
    assert len(runpod.api().pods(cluster_members=True)) == 2
    assert {request.url.params["includeClusterPods"] for request in runpod.asked} == {"true"}


def test_the_last_page_is_the_one_that_says_so(runpod: Scripted) -> None:
    runpod.answers = [page("a", cursor="c1", more=False)]
    assert len(runpod.api().pods()) == 1
    runpod.asked, runpod.answers = [], [said(200, {"pods": [pod_record()], "pagination": None})]
    assert len(runpod.api().pods()) == 1, "what does not speak of pages is whole"


@pytest.mark.parametrize(
    ("answers", "says"),
    [
        ([page("a", cursor="c1"), page("b", cursor="c1")], "its pages repeat"),
        (
            [page("a", cursor="c1"), page("b", cursor="c2"), page("c", cursor="c1")],
            "its pages repeat",
        ),
        ([page("a", more=True)], "RunPod's list has more pages, but no address for the next one"),
        (
            [page("a", cursor="", more=True)],
            "RunPod's list has more pages, but no address for the next one",
        ),
        ([page("a", cursor="c1"), problem(422, "malformed cursor")], "malformed cursor"),
        ([page("a", cursor="c1"), said(200, {"pagination": {}})], "pods: Field required"),
        ([page("a", cursor="c1"), problem(503, "x")], "answers 503"),
        ([said(200, {"pods": [], "pagination": {"hasNextPage": "no"}})], "pagination"),
        ([said(200, {"pods": [], "pagination": {"nextCursor": 7, "hasNextPage": True}})], "Cursor"),
        ([said(200, {})], "pods: Field required"),
        ([said(200, {"pods": None})], "pods"),
    ],
)
def test_an_unfinished_list_is_none(runpod: Scripted, answers: list[Answer], says: str) -> None:
    runpod.answers = answers
    with pytest.raises(ProviderError, match=says):
        runpod.api().pods()


@pytest.mark.parametrize(
    "trouble",
    [problem(500, "x"), problem(503, "x"), httpx.ConnectError("no"), httpx.ReadTimeout("late")],
)
def test_a_read_is_tried_again_with_longer_waits(runpod: Scripted, trouble: Answer) -> None:
    runpod.answers = [trouble, trouble, trouble, said(200, {"pods": [pod_record()]})]
    assert [pod.id for pod in runpod.api().pods()] == ["abc123"]
    assert runpod.slept == [0.5, 1.0, 2.0]


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (problem(401, "no"), AuthError),
        (problem(403, "no"), AccessDenied),
        (said(200, "<html>"), ProviderError),
        (said(200, {"pods": {}}), ProviderError),
        (said(200, {"pods": [{"name": "no id"}]}), ProviderError),
        (said(200, {"pods": [{"id": "a/../b", "name": "n"}]}), ProviderError),
        (said(200, "[" * 100_000), ProviderError),
    ],
)
def test_what_cannot_get_better_is_not_asked_again(
    runpod: Scripted, answer: Answer, error: type[ProviderError]
) -> None:
    runpod.answers = [answer]
    with pytest.raises(error):
        runpod.api().pods()
    assert len(runpod.asked) == 1


def test_a_deletion_that_fails_goes_the_other_way(runpod: Scripted) -> None:
    runpod.answers = [problem(409, "no"), said(204)]
    assert runpod.api().delete_pod("abc") is True
    assert [(r.method, r.url.path) for r in runpod.asked] == [
        ("DELETE", "/v2/pods/abc"),
        ("POST", "/v2/pods/abc/action"),
    ]


def test_a_deletion_is_repeated_and_404_proves_nothing(runpod: Scripted) -> None:
    runpod.answers = [problem(500, "x"), problem(404, "pod not found")]
    assert runpod.api().delete_pod("abc") is False
    assert [r.method for r in runpod.asked] == ["DELETE", "DELETE"]


def test_a_pod_that_is_not_there(runpod: Scripted) -> None:
    runpod.answers = [problem(404, "pod not found")]
    assert runpod.api().pod("abc") is None
    with pytest.raises(NotThere):
        runpod.http().read("GET", "https://x/y")


def test_a_redirect_is_not_followed_with_the_key(runpod: Scripted) -> None:
    runpod.answers = [said(302, "", Location="https://evil.test/")]
    with pytest.raises(ProviderError, match="302"):
        runpod.api().pods()
    assert [r.url.host for r in runpod.asked] == ["api.runpod.test"]


# -- http ---------------------------------------------------------------------------------------
# One answer of RunPod's, taken apart: its JSON, what an error says, its clock, its patience.


URL = "https://api.runpod.test/v2/pods"
WHERE = "RunPod, GET /v2/pods"


def read(runpod: Scripted, *answers: Any, bound_s: float = 20.0) -> httpx.Response:
    runpod.answers = list(answers)
    return runpod.http(bound_s).read("GET", URL)


def test_a_key_that_none_can_be_is_refused_before_anything_is_asked() -> None:
    with pytest.raises(AuthError, match="the RunPod key has invalid characters"):
        Http("rpa_é")


def test_one_that_is_closed_asks_nothing_more(runpod: Scripted) -> None:
    runpod.answers = [said(200, {})]
    http = runpod.http()
    http.close()
    with pytest.raises(RuntimeError, match="closed"):
        http.send("GET", URL)
    assert runpod.asked == []


# -- how long ----------------------------------------------------------------------------------


def timeouts(runpod: Scripted) -> list[tuple[float, float]]:
    """Of each request: for its answer, and for the connection."""
    found = [request.extensions["timeout"] for request in runpod.asked]
    return [(round(each["read"], 6), round(each["connect"], 6)) for each in found]


def test_a_read_waits_for_each_answer_no_longer_than_it_has_left(runpod: Scripted) -> None:
    runpod.each_s = 7.0
    with pytest.raises(TransientError):
        read(runpod, problem(500, "later"))
    # 20 s in all, of which answers take 7 and pauses half a second, one and two.
    assert timeouts(runpod) == [(15.0, 5.0), (12.5, 5.0), (4.5, 4.5)]
    assert runpod.slept == [0.5, 1.0]


def test_a_read_that_has_hardly_any_time_left_waits_a_second(runpod: Scripted) -> None:
    with pytest.raises(TransientError):
        read(runpod, problem(500, "later"), bound_s=0.2)
    assert timeouts(runpod) == [(1.0, 1.0)]


def test_a_pause_that_would_use_up_the_time_is_not_made(runpod: Scripted) -> None:
    with pytest.raises(TransientError):
        read(runpod, problem(500, "later"), bound_s=0.5)
    assert (len(runpod.asked), runpod.slept) == (1, [])


def test_a_single_request_waits_as_long_as_it_is_told(runpod: Scripted) -> None:
    runpod.answers = [said(200, {})]
    http = runpod.http()
    for timeout_s in (60.0, 3.0):
        http.send("POST", URL, timeout_s=timeout_s)
    http.send("GET", URL)
    assert timeouts(runpod) == [(60.0, 5.0), (3.0, 3.0), (15.0, 5.0)]
    assert http.requests == 3
    assert runpod.http().requests == 0


@pytest.mark.parametrize(
    ("header", "slept"),
    [("3", 3.0), (" 3 ", 3.0), ("0", 0.0), ("", 0.5), ("Fri, 31 Dec 1999 23:59:59 GMT", 0.5),
     ("-3", 0.5), ("3.5", 0.5), ("9" * 5000, 0.5), ("٣", 0.5)],
)  # fmt: skip
def test_a_wish_to_wait_is_seconds_or_none(runpod: Scripted, header: str, slept: float) -> None:
    answer = httpx.Response(429, headers=[(b"Retry-After", header.encode())])
    assert read(runpod, answer, said(200, {})).is_success
    assert runpod.slept == [slept]


def test_nobody_waits_longer_than_a_day(runpod: Scripted) -> None:
    for wish, waits in ((86_399, 86_399.0), (86_400, 86_400.0), (86_401, 86_400.0)):
        refused = runpod.http().refusal(problem(429, "x", Retry_After=str(wish)), WHERE)
        assert isinstance(refused, ThrottledError)
        assert refused.retry_after_s == waits


def test_pauses_grow_to_eight_seconds(runpod: Scripted) -> None:
    with pytest.raises(TransientError):
        read(runpod, problem(500, "later"), bound_s=39.0)
    assert runpod.slept == [0.5, 1.0, 2.0, 4.0, 8.0, 8.0, 8.0]


# -- the requests that the processes of a home share --------------------------------------------


def used_up(runpod: Scripted) -> Http:
    """A client that has sent the 18 requests which an ordinary one may send at once; the next one
    is due two seconds later."""
    runpod.share(60, 60.0)
    runpod.answers = [said(500)]
    http = runpod.http()
    for _ in range(18):
        http.send("GET", URL)
    runpod.asked.clear()
    assert runpod.slept == []
    return http


def test_the_wait_for_its_turn_is_part_of_the_time_that_a_request_has(runpod: Scripted) -> None:
    http = used_up(runpod)
    for timeout_s in (5.0, 2.5):
        http.send("GET", URL, timeout_s=timeout_s)
    assert runpod.slept == pytest.approx([2.0, 2.0], abs=0.01)
    (waits, _), (hardly, connects) = timeouts(runpod)
    assert waits == pytest.approx(3.0, abs=0.01)
    assert (hardly, connects) == (1.0, 1.0), "the least in which an answer can come"


@pytest.mark.parametrize(("pause_s", "timeout_s", "sent"),
                         [(1.0, 1.5, True), (2.0, 1.5, False), (14.0, 60.0, True),
                          (16.0, 60.0, False)])  # fmt: skip
def test_a_turn_is_waited_for_as_long_as_an_answer_and_no_longer_than_15_s(
    runpod: Scripted, pause_s: float, timeout_s: float, sent: bool
) -> None:
    runpod.share(60, 60.0)
    assert runpod.budget is not None
    runpod.budget.hold(pause_s)
    runpod.answers = [said(200, {})]
    if not sent:
        with pytest.raises(ThrottledError, match="nothing was sent") as told:
            runpod.http().send("POST", URL, timeout_s=timeout_s)
        assert (told.value.sent, told.value.where) == (False, "RunPod, POST /v2/pods")
    else:
        runpod.http().send("POST", URL, timeout_s=timeout_s)
    assert len(runpod.asked) == sent


@pytest.mark.parametrize("code", [200, 408, 428, 429, 430, 500, 503])
@pytest.mark.parametrize("asked", ["once", "as a stream"])
def test_a_429_and_nothing_else_pauses_all_who_share(
    runpod: Scripted, code: int, asked: str
) -> None:
    runpod.share(60, 60.0)
    one, other = runpod.api(), runpod.http()
    runpod.answers = [problem(code, "why", Retry_After="9")]
    if asked == "once":
        one.http.send("GET", URL)
    elif code == 200:
        one.log_text("abc", 200)
    else:
        with pytest.raises(ProviderError):
            one.log_text("abc", 200)
    assert runpod.slept == []
    other.send("GET", URL)
    assert sum(runpod.slept) == pytest.approx(9.0 if code == 429 else 0.0, abs=0.01)


@pytest.mark.parametrize(
    ("code", "url", "teaches"),
    [(200, URL, True), (429, URL, False), (500, URL, False),
     (200, "https://api.runpod.test/graphql", False)],
)  # fmt: skip
def test_limits_are_learned_from_what_the_api_answers_in_success(
    runpod: Scripted, code: int, url: str, teaches: bool
) -> None:
    """GraphQL has other limits, and the headers of an error are a proxy's as often as RunPod's."""
    runpod.share(1000, 1.0)
    stated = {"RateLimit-Policy": '"default";q=4;w=10', "Retry-After": "0"}
    runpod.answers = [httpx.Response(code, headers=stated, json={})]
    http = runpod.http()
    http.send("GET", url)
    runpod.answers = [said(500)]
    for _ in range(3):
        http.send("GET", URL)
    assert sum(runpod.slept) == pytest.approx(5.0 if teaches else 0.0, abs=0.01)


def test_a_window_that_is_used_up_is_a_pause_for_all(runpod: Scripted) -> None:
    runpod.share(1000, 1.0)
    stated = {"RateLimit-Policy": '"default";q=1000;w=1', "RateLimit": '"default";r=0;t=6'}
    runpod.answers = [httpx.Response(200, headers=stated, json={}), said(500)]
    http = runpod.http()
    for _ in range(2):
        http.send("GET", URL)
    assert sum(runpod.slept) == pytest.approx(6.0, abs=0.01)


def test_a_log_waits_for_its_turn_two_seconds_at_most(runpod: Scripted) -> None:
    used_up(runpod)
    runpod.answers = [said(200, "data: a")]
    runpod.now += 0.5
    assert runpod.api().log_text("abc", 200) == ["data: a"]
    assert runpod.slept == pytest.approx([1.5], abs=0.01)
    assert runpod.budget is not None
    runpod.budget.hold(3.0)
    with pytest.raises(ThrottledError, match="nothing was sent"):
        runpod.api().log_text("abc", 200)
    assert len(runpod.asked) == 1


@pytest.mark.parametrize(
    ("ask", "record", "waits"),
    [
        (lambda api: api.pods(), {"pods": []}, False),
        (lambda api: api.pod("abc"), pod_record(), False),
        (lambda api: api.delete_pod("abc"), {}, False),
        (lambda api: api.volumes(), {"networkVolumes": []}, True),
        (lambda api: api.billed_lately(), {"records": []}, True),
    ],
    ids=["pods", "a pod", "an end", "volumes", "bills"],
)
def test_what_proves_an_end_and_what_brings_it_need_not_wait_for_other_requests(
    runpod: Scripted, ask: Callable[[RunPodApi], object], record: Any, waits: bool
) -> None:
    used_up(runpod)
    runpod.answers = [said(200, record)]
    ask(runpod.api())
    assert bool(runpod.slept) is waits
    assert len(runpod.asked) == 1


# -- the server's clock ------------------------------------------------------------------------


def test_a_clock_that_is_told_no_more_is_not_known(runpod: Scripted) -> None:
    runpod.answers = [
        said(200, {}, Date="Fri, 15 Jan 2027 07:59:50 GMT"),
        said(200, {}),
        said(200, {}, Date="no day"),
    ]
    http = runpod.http()
    known = []
    for _ in range(3):
        http.send("GET", URL)
        known.append(http.skew_s)
    assert known == [10.0, 10.0, None]


# -- what came ---------------------------------------------------------------------------------


@pytest.mark.parametrize("content", ["", "[]", "<html>", '"x"', "1", "[" * 100_000])
def test_what_is_no_object_is_refused_and_shown(runpod: Scripted, content: str) -> None:
    with pytest.raises(ProviderError) as odd:
        runpod.http().json(said(200, content), WHERE)
    assert odd.value.what.endswith(f"API contract: {runpod.http().clean(content)!r}")
    assert odd.value.where == WHERE


def test_an_answer_that_cannot_be_unpacked_is_an_error_of_ours(runpod: Scripted) -> None:
    with pytest.raises(ProviderError, match="RunPod's answer: not gzip"):
        read(runpod, httpx.DecodingError("not gzip"))
    assert len(runpod.asked) == 1


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        ("plain  words\n", "plain words"),
        ("", "(no text)"),
        ("[1]", "[1]"),
        (" \n<html>", "a web page instead of an API answer"),
        ("[" * 100_000, "[" * 300 + "…"),
        ({}, "(no text)"),
        ({"errors": []}, "(no text)"),
        ({"errors": "odd"}, "(no text)"),
        ({"detail": "", "title": "T"}, "T"),
        ({"detail": "D", "title": "T", "error": "E"}, "D"),
        ({"title": "T", "error": "E"}, "T"),
        ({"error": "E"}, "E"),
        ({"detail": {"a": 1}}, "{'a': 1}"),
        ({"errors": ["a", "b", "c"]}, "a; b; c"),
        ({"detail": "D", "errors": ["a", "b", "c", "d", "e"]}, "D; a; b; c; and 2 more"),
        ({"errors": ["x" * 200, {"at": 1}]}, "x" * 100 + "; {'at': 1}"),
    ],
)
def test_what_an_error_says_is_one_line(runpod: Scripted, body: Any, detail: str) -> None:
    assert runpod.http().detail(said(400, body)) == detail


def test_text_of_the_servers_is_cut_and_free_of_the_key(runpod: Scripted) -> None:
    http = runpod.http()
    assert http.clean("x" * 300) == "x" * 300
    assert http.clean("x" * 301) == "x" * 300 + "…"
    assert http.clean(f"no {KEY}\x1b[2J\n\tat  all") == "no *** at all"
    assert Http("").clean("nothing to hide") == "nothing to hide"


@pytest.mark.parametrize(
    ("code", "kind", "says"),
    [
        (400, ProviderRefused, "RunPod rejects the request: why"),
        (401, AuthError, "RunPod does not know this key"),
        (402, PaymentRequired, "the RunPod balance does not cover this: why"),
        (403, AccessDenied, "the RunPod key does not permit this: why"),
        (404, ProviderError, "RunPod did not find it: why"),
        (409, ProviderRefused, "RunPod: not possible in this state: why"),
        (410, ApiRetired, "RunPod answers 410: the API of this version no longer exists"),
        (413, FinalRefusal, "the request is too large for RunPod: why"),
        (422, FinalRefusal, "RunPod's API contract was broken: why"),
        (408, TransientError, "RunPod answers 408: why"),
        (499, ProviderRefused, "RunPod rejects the request: why"),
        (500, TransientError, "RunPod answers 500: why"),
        (599, TransientError, "RunPod answers 599: why"),
        (300, ProviderError, "RunPod's address answers 300: it has moved"),
        (399, ProviderError, "RunPod's address answers 399: it has moved"),
    ],
)
def test_each_refusal(runpod: Scripted, code: int, kind: type[ProviderError], says: str) -> None:
    refused = runpod.http().refusal(problem(code, "why"), WHERE)
    assert isinstance(refused, kind)
    assert isinstance(refused, TransientError) is (kind is TransientError)
    assert refused.what.startswith(says)
    assert refused.where == WHERE
