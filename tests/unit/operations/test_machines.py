"""The last lists, balances and failures of providers and buckets, by their age."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from trmcloud.core.clock import DatedFact, UnknownSince
from trmcloud.core.control.balance import AccountBalance
from trmcloud.core.errors import AuthError, NotSupported, ProviderError
from trmcloud.core.money import Usd
from trmcloud.operations.context import Buckets
from trmcloud.operations.machines import Balances, Machines, PodLists, UnreachableProvider

AT = 1000.0


class Provider:
    """Answers each request with the next answer, or raises it."""

    def __init__(self, *answers: Any) -> None:
        self._answers = iter(answers)

    def list_pods(self) -> Any:
        answer = next(self._answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    balance = list_pods


def listed(*pods: Any, at: float = AT) -> Any:
    return DatedFact(pods, at)


def provider(*answers: Any) -> Any:
    return Provider(*answers)


def test_a_list_serves_for_as_long_as_is_asked_for() -> None:
    lists, compute = PodLists(), provider(["a"], ["b"], ["c"])
    assert lists.last("runpod") is None
    assert lists.read("runpod", compute, AT, 60.0) == listed("a")
    assert lists.read("runpod", compute, AT + 59.9, 60.0) == listed("a")
    assert lists.read("runpod", compute, AT + 60.0, 60.0) == listed("b", at=AT + 60.0)
    assert lists.read("runpod", compute, AT, 60.0) == listed("c"), "the clock was set back"
    assert lists.last("vast") is None


def test_a_list_that_failed_is_asked_for_again_at_once() -> None:
    error = ProviderError("503")
    compute = provider(error, ["a"], error, error)
    machines = Machines({"runpod": compute}, {})
    assert machines.list_pods("runpod", AT, 60.0) == UnknownSince(AT, str(error))
    assert machines.lists.unreached() == (("runpod", str(error)),)
    assert machines.list_pods("runpod", AT + 1, 60.0) == listed("a", at=AT + 1)
    assert machines.lists.unreached() == ()
    with pytest.raises(ProviderError):
        machines.lists.read("runpod", compute, AT + 2)
    assert machines.lists.last("runpod") == listed("a", at=AT + 1), "until it is put on record"
    machines.list_pods("runpod", AT + 3)
    assert machines.lists.last("runpod") == UnknownSince(AT + 3, str(error))
    machines.lists.clear()
    assert machines.lists.last("runpod") is None


def test_a_provider_that_is_left_alone_is_not_asked() -> None:
    machines = Machines({"runpod": provider()}, {}, unasked=frozenset({"runpod"}))
    assert machines.list_pods("runpod", AT) == UnknownSince(AT, "it was not queried")
    assert machines.lists.unreached() == ()


def test_a_balance_that_failed_serves_as_long_as_one_that_was_read() -> None:
    balances, account = Balances(), AccountBalance(Usd(7))
    compute = provider(account, ProviderError("503"), account)
    assert balances.last("runpod") is None
    first = balances.read("runpod", compute, AT, 60.0)
    assert (first.account, first.read_at, first.trouble) == (account, AT, "")
    assert balances.read("runpod", compute, AT + 59.9, 60.0) is first
    failed = balances.read("runpod", compute, AT + 60.0, 60.0)
    assert (failed.account, failed.read_at, failed.asked_at) == (account, AT, AT + 60.0)
    assert "503" in failed.trouble
    assert balances.read("runpod", compute, AT + 61.0, 60.0) is failed
    assert balances.read("runpod", compute, AT + 61.0).trouble == ""


def test_a_provider_out_of_reach_is_refused_with_its_reason() -> None:
    unreachable: Any = UnreachableProvider(AuthError("there is no key"))
    machines = Machines({"runpod": unreachable, "vast": provider()}, {})
    machines.require_reach("vast")
    machines.require_reach("nowhere")
    with pytest.raises(AuthError, match="there is no key"):
        machines.require_reach("runpod")


def test_a_bucket_that_failed_is_left_alone_for_a_while() -> None:
    made: list[str] = []
    bucket: Any = SimpleNamespace()

    def connect(place: str) -> Any:
        made.append(place)
        return bucket

    buckets = Buckets(connect)
    assert buckets.at("s3://a") is bucket
    assert made == ["s3://a"]
    buckets.fail("s3://a", AT)
    assert [buckets.has_failed("s3://a", AT + s, 60.0) for s in (0.0, 59.9, 60.0, -1.0)] == [
        True, True, False, False,
    ]  # fmt: skip
    assert not buckets.has_failed("s3://b", AT, 60.0)
    buckets.succeed("s3://a")
    assert not buckets.has_failed("s3://a", AT, 60.0)
    with pytest.raises(NotSupported, match="no credentials here for s3://a"):
        Buckets().at("s3://a")
