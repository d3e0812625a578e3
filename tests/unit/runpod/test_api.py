"""What each answer of RunPod's becomes, and what is asked again."""

from __future__ import annotations

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
from trmcloud.providers.runpod.api import LIST_S, MOST_PAGES, NO_CAPACITY
from trmcloud.providers.runpod.http import Gone, NotThere, Throttled

BODY = {"name": "p", "image": "i"}
NONE_FREE = (
    "There are no longer any instances available with the requested specifications. "
    "Please refresh and try again."
)
REQUEST = httpx.Request("POST", "https://x")


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (problem(400, NONE_FREE), NoCapacity),
        (problem(500, f"create pod: {NONE_FREE}"), NoCapacity),
        (problem(400, "create pod: There are no instances currently available."), NoCapacity),
        (problem(400, "gpu.count must not be 3"), ProviderRefused),
        (problem(401, "no"), AuthError),
        (problem(402, "insufficient balance"), PaymentRequired),
        (problem(403, "Your account cannot access the requested pool"), ProviderRefused),
        (problem(404, "volume not found"), ProviderRefused),
        (problem(409, "state"), ProviderRefused),
        (
            said(422, {"title": "", "status": 422, "detail": "d", "errors": ["$: x"]}),
            FinalRefusal,
        ),
        (problem(410, "retired"), Gone),
        (problem(413, "too large"), FinalRefusal),
        (problem(429, "slow down", Retry_After="7"), Throttled),
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


def test_which_refusals_leave_the_other_candidates_a_chance(runpod: Scripted) -> None:
    """By the contract's own table: 400 and 403 are the candidate's, the rest is everybody's."""
    final = {}
    for code in (400, 403, 404, 409, 401, 402, 410, 413, 422):
        runpod.asked, runpod.answers = [], [problem(code, "said so")]
        with pytest.raises(ProviderRefused) as caught:
            runpod.api().create_pod(BODY)
        final[code] = isinstance(caught.value, FinalRefusal)
        assert "said so" in caught.value.what or code == 401
    assert [code for code, is_final in final.items() if is_final] == [401, 402, 410, 413, 422]


def test_a_create_that_worked(runpod: Scripted) -> None:
    runpod.answers = [said(201, pod_record())]
    pod = runpod.api().create_pod(BODY)
    assert (pod.id, str(pod.rate)) == ("abc123", "$1.79")
    assert pod.made_at == 1_800_000_000.0
    sent = runpod.asked[0]
    assert sent.headers["Authorization"] == f"Bearer {KEY}"
    assert "python" not in sent.headers["User-Agent"].lower()


def test_violations_are_named(runpod: Scripted) -> None:
    body = {"title": "", "status": 422, "detail": "bad", "errors": ["$: additional 'bogus'"]}
    runpod.answers = [said(422, body)]
    with pytest.raises(ProviderRefused, match=r"bad; \$: additional 'bogus'"):
        runpod.api().create_pod(BODY)


def test_many_violations_are_cut_short_and_clean(runpod: Scripted) -> None:
    errors = ["$.env: \x1b[2J" + "x" * 500, {"odd": 1}, "$.b", "$.c", "$.d"]
    body = {"title": "", "status": 422, "detail": "bad", "errors": errors}
    runpod.answers = [said(422, body)]
    with pytest.raises(FinalRefusal) as caught:
        runpod.api().create_pod(BODY)
    assert "$.b; and 2 more" in caught.value.what
    assert "\x1b" not in caught.value.what
    assert len(caught.value.what) < 300


def test_a_web_page_is_not_shown(runpod: Scripted) -> None:
    runpod.answers = [said(502, "<html>\n<h1>502 Bad Gateway</h1></html>")]
    with pytest.raises(ProviderError) as caught:
        runpod.api().pods()
    assert caught.value.what == "RunPod answers 502: a web page, and no answer of its API"


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
        ([page("a", cursor="c1"), page("b", cursor="c1")], "in a circle"),
        (
            [page("a", cursor="c1"), page("b", cursor="c2"), page("c", cursor="c1")],
            "in a circle",
        ),
        ([page("a", more=True)], "does not say where"),
        ([page("a", cursor="", more=True)], "does not say where"),
        ([page("a", cursor="c1"), problem(422, "malformed cursor")], "malformed cursor"),
        ([page("a", cursor="c1"), said(200, {"pagination": {}})], "pods: Field required"),
        ([page("a", cursor="c1"), problem(503, "x")], "answers 503"),
        ([said(200, {"pods": [], "pagination": {"hasNextPage": "no"}})], "pagination"),
        ([said(200, {"pods": [], "pagination": {"nextCursor": 7, "hasNextPage": True}})], "Cursor"),
        ([said(200, {})], "pods: Field required"),
        ([said(200, {"pods": None})], "pods"),
    ],
)
def test_a_list_that_was_not_read_to_its_end_is_no_list(
    runpod: Scripted, answers: list[Answer], says: str
) -> None:
    runpod.answers = answers
    with pytest.raises(ProviderError, match=says):
        runpod.api().pods()


def test_a_list_that_never_ends(runpod: Scripted) -> None:
    runpod.answers = [
        lambda request: page(cursor=f"c{len(runpod.asked)}"),
    ]
    with pytest.raises(ProviderError, match="does not end"):
        runpod.api().pods()
    assert len(runpod.asked) == MOST_PAGES
    runpod.asked, runpod.each_s = [], 13.0
    began = runpod.now
    with pytest.raises(ProviderError, match="not read within"):
        runpod.api().pods()
    assert runpod.now - began <= LIST_S + 13.0


def test_a_read_waits_as_long_as_it_is_told(runpod: Scripted) -> None:
    runpod.answers = [problem(429, "slow", Retry_After="12"), said(200, {"pods": []})]
    assert runpod.api().pods() == []
    assert runpod.slept == [12.0]


def test_a_read_does_not_wait_beyond_its_bound(runpod: Scripted) -> None:
    runpod.answers = [problem(429, "slow", Retry_After="3600")]
    with pytest.raises(ProviderError, match="less often"):
        runpod.api().pods()
    assert runpod.slept == []


@pytest.mark.parametrize(
    "trouble",
    [problem(500, "x"), problem(503, "x"), httpx.ConnectError("no"), httpx.ReadTimeout("late")],
)
def test_a_read_is_tried_again_with_longer_and_longer_waits(
    runpod: Scripted, trouble: Answer
) -> None:
    runpod.answers = [trouble, trouble, trouble, said(200, {"pods": [pod_record()]})]
    assert [pod.id for pod in runpod.api().pods()] == ["abc123"]
    assert runpod.slept == [0.5, 1.0, 2.0]


def test_a_read_ends_within_its_bound_however_slow_the_answers(runpod: Scripted) -> None:
    runpod.each_s = 4.0
    runpod.answers = [problem(500, "x")]
    began = runpod.now
    with pytest.raises(ProviderError, match="answers 500"):
        runpod.api(bound_s=20.0).pods()
    assert 10.0 < runpod.now - began <= 24.0, "one request may be under way when time is up"


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


def test_what_is_not_needed_may_be_odd(runpod: Scripted) -> None:
    odd = pod_record(
        status=7, cost="free", createdAt=[], ssh="?", disk="?", mounts=[], new_field={"a": 1}
    )
    runpod.answers = [said(200, {"pods": [odd], "more": 1})]
    (pod,) = runpod.api().pods()
    assert (pod.status, pod.rate, pod.made_at, pod.ssh, pod.disk_gb) == (None, None, None, None, 0)


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


def test_a_deletion_that_was_taken_and_did_nothing_goes_the_other_way_next_time(
    runpod: Scripted,
) -> None:
    runpod.answers = [said(204)]
    api = runpod.api()
    assert api.delete_pod("abc") is api.delete_pod("abc") is True
    assert [r.url.path for r in runpod.asked] == ["/v2/pods/abc", "/v2/pods/abc/action"]


def test_a_deletion_that_nobody_takes_is_an_error(runpod: Scripted) -> None:
    runpod.answers = [problem(403, "no")]
    with pytest.raises(AccessDenied):
        runpod.api().delete_pod("abc")


def test_a_pod_that_is_not_there(runpod: Scripted) -> None:
    runpod.answers = [problem(404, "pod not found")]
    assert runpod.api().pod("abc") is None
    with pytest.raises(NotThere):
        runpod.http().read("GET", "https://x/y")


def test_the_key_stays_out_of_what_is_told(runpod: Scripted) -> None:
    runpod.answers = [problem(400, f"bad \x1b[31mkey {KEY}\x07 " + "y" * 5000)]
    with pytest.raises(ProviderRefused) as caught:
        runpod.api().create_pod(BODY)
    text = str(caught.value)
    assert KEY not in text
    assert "\x1b" not in text
    assert len(text) < 400


def test_a_redirect_is_not_followed_with_the_key(runpod: Scripted) -> None:
    runpod.answers = [said(302, "", Location="https://evil.test/")]
    with pytest.raises(ProviderError, match="302"):
        runpod.api().pods()
    assert [r.url.host for r in runpod.asked] == ["api.runpod.test"]


def test_an_api_that_is_gone_says_so(runpod: Scripted) -> None:
    runpod.answers = [problem(410, "this API has been retired")]
    with pytest.raises(Gone, match="API that this version speaks is gone") as caught:
        runpod.api().pods()
    assert "upgrade" in caught.value.next_step
    assert len(runpod.asked) == 1


def test_the_servers_clock_is_compared(runpod: Scripted) -> None:
    runpod.answers = [said(200, {"pods": []}, Date="Fri, 15 Jan 2027 07:58:00 GMT")]
    api = runpod.api()
    api.pods()
    assert api.http.skew_s == 120.0
