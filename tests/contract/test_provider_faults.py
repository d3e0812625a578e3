"""What any seller may do wrong, written once and played against every provider's adapter.

A test names its fault; it is played on each rig that can show it (``provider_rigs``). Every fault
that was injected must have been reached when its test ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.contract.provider_rigs import NO_SELLER, RATE, RIGS, Fault, HttpRig, Rig
from tests.present import present
from trmcloud.adapters.pod_lists import LONGEST_HOLD_S
from trmcloud.core.errors import (
    AmbiguousCreate,
    AuthError,
    FinalRefusal,
    NoCapacity,
    PaymentRequired,
    ProviderError,
    ProviderRefused,
)
from trmcloud.core.money import ZERO, Usd, cost
from trmcloud.ports.compute import Throttled
from trmcloud.providers.registry import ROWS

PLAYED: set[Fault] = set()
Test = TypeVar("Test", bound=Callable[..., None])
UNREADABLE = {
    "half": b"", "web page": b"<html>Just a moment...</html>", "nothing": b" ", "a list": b"[1]",
    "another object": b'{"a": 1}', "deep": b"[" * 100_000,
}  # fmt: skip


def shown(*faults: Fault) -> Callable[[Test], Test]:
    """Play the test on every rig that can show all of these."""
    PLAYED.update(faults)
    able = [name for name, each in RIGS.items() if set(faults) <= each.CAN.keys()]
    return pytest.mark.parametrize("rig", able, indirect=True)


every = pytest.mark.parametrize("rig", list(RIGS), indirect=True)
over_http = pytest.mark.parametrize(
    "rig", [name for name, each in RIGS.items() if issubclass(each, HttpRig)], indirect=True
)


@pytest.fixture
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rig]:
    with ExitStack() as stack:
        made = RIGS[request.param](tmp_path, stack)  # type: ignore[call-arg]
        yield made
        made.require_reached()


def rented(rig: Rig) -> tuple[str, str]:
    """(name, id) of a machine that runs and was listed; the next look asks anew."""
    wanted = rig.request()
    pod_id = rig.compute.create(wanted)
    rig.on(60)
    assert [pod.pod_id for pod in rig.named(wanted.name)] == [pod_id]
    rig.on(30)
    return wanted.name, pod_id


def is_plain(error: ProviderError) -> None:
    """One line, with the next step, and free of control characters."""
    text = str(error)
    assert error.next_step
    assert "\n" not in text
    assert "\x1b" not in text
    assert len(text) < 900


# -- the table -------------------------------------------------------------------------------------


def test_every_rig_says_of_every_fault_whether_it_can_be_shown() -> None:
    for rig in RIGS.values():
        assert not rig.CAN.keys() & rig.LACKS.keys(), rig.name
        assert rig.CAN.keys() | rig.LACKS.keys() == set(Fault), rig.name
        assert all(rig.LACKS.values()), rig.name
    assert set(Fault) == PLAYED, "a fault that no test plays"
    assert RIGS.keys() | NO_SELLER.keys() == ROWS.keys(), "a provider without a rig"


@pytest.mark.parametrize("rig", ["vast"], indirect=True)
def test_a_fault_that_no_request_reached_is_told(rig: Rig) -> None:
    rig.inject(Fault.BILL_FAILS)
    with pytest.raises(AssertionError, match="BILL_FAILS"):
        rig.require_reached()
    rig.lift_unreached()


@every
def test_machines_are_told_apart_run_at_their_rate_and_end_twice(rig: Rig) -> None:
    first, second = rig.request(), rig.request(2)
    made = [rig.compute.create(first), rig.compute.create(second)]
    (pod,) = rig.named(first.name)
    assert (pod.pod_id, pod.rate) == (made[0], RATE)
    assert pod.status in ("creating", "running")
    rig.on(900)
    assert [pod.status for pod in rig.named(first.name)] == ["running"]
    assert rig.compute.create(first) == made[0], "a name is given to one machine alone"
    assert rig.compute.terminate(made[0]) is True
    rig.on(60)
    assert rig.named(first.name) == []
    for named in (made[0], first.name):
        rig.compute.terminate(named)
    assert [pod.pod_id for pod in rig.named(second.name)] == [made[1]]
    assert rig.living() == [second.name]


# -- creates whose result is not known ----------------------------------------------------------


@shown(Fault.CREATE_FAILS)
def test_a_create_that_fails_is_not_known_to_have_made_nothing(rig: Rig) -> None:
    rig.inject(Fault.CREATE_FAILS)
    with pytest.raises(AmbiguousCreate) as caught:
        rig.compute.create(rig.request())
    assert caught.value.what
    assert (rig.creates(), rig.living()) == (1, []), "it is sent once"


def found_again(rig: Rig) -> None:
    wanted = rig.request()
    with pytest.raises(AmbiguousCreate):
        rig.compute.create(wanted)
    assert (rig.creates(), rig.living()) == (1, [wanted.name])
    rig.on(10)
    made = rig.compute.create(wanted)
    assert [pod.pod_id for pod in rig.named(wanted.name)] == [made]
    assert (rig.creates(), rig.living()) == (1, [wanted.name]), "it is not made twice"
    assert rig.compute.terminate(wanted.name) is True
    assert rig.living() == []


@shown(Fault.CREATE_LOST)
def test_a_lost_answer_is_found_by_its_name_and_made_once(rig: Rig) -> None:
    rig.inject(Fault.CREATE_LOST)
    found_again(rig)


@shown(Fault.CREATE_DROPPED)
def test_a_connection_that_closes_is_found_by_its_name_and_made_once(rig: Rig) -> None:
    rig.inject(Fault.CREATE_DROPPED)
    found_again(rig)


@pytest.mark.parametrize("body", UNREADABLE.values(), ids=list(UNREADABLE))
@shown(Fault.CREATE_GARBLED)
def test_an_answer_that_cannot_be_read_is_found_by_its_name(rig: Rig, body: bytes) -> None:
    rig.inject(Fault.CREATE_GARBLED, body=body)
    found_again(rig)


@shown(Fault.UNPLUGGED)
def test_a_create_that_was_never_sent_has_made_nothing_for_certain(rig: HttpRig) -> None:
    rig.inject(Fault.UNPLUGGED)
    with pytest.raises(ProviderError) as caught:
        rig.compute.create(rig.request(require_wanted=lambda: rig.unplug()))
    assert not isinstance(caught.value, AmbiguousCreate)
    assert "cannot be reached" in caught.value.what
    is_plain(caught.value)
    assert rig.living() == []


# -- creates that are refused -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "error", "is_final"),
    [
        (400, ProviderRefused, False),
        (401, AuthError, True),
        (402, PaymentRequired, True),
        (403, ProviderRefused, None),
        (409, ProviderRefused, False),
        (408, AmbiguousCreate, False),
        (500, AmbiguousCreate, False),
        (504, AmbiguousCreate, False),
    ],
)
@shown(Fault.CREATE_REFUSED)
def test_each_refusal_is_one_error_and_is_not_asked_again(
    rig: HttpRig, status: int, error: type[ProviderError], is_final: bool | None
) -> None:
    rig.inject(Fault.CREATE_REFUSED, status=status)
    with pytest.raises(error) as caught:
        rig.compute.create(rig.request())
    final = rig.is_403_final if is_final is None else is_final
    assert isinstance(caught.value, FinalRefusal) is final
    is_plain(caught.value)
    assert rig.key not in str(caught.value), "the key is shown to nobody"
    assert caught.value.where
    assert (rig.creates(), rig.living()) == (1, [])


@shown(Fault.NO_CAPACITY)
def test_what_is_sold_out_is_no_capacity(rig: Rig) -> None:
    rig.inject(Fault.NO_CAPACITY)
    with pytest.raises(NoCapacity):
        rig.compute.create(rig.request())
    assert rig.living() == []


@shown(Fault.NO_MONEY)
def test_an_empty_account_is_no_candidates_fault(rig: Rig) -> None:
    rig.inject(Fault.NO_MONEY)
    with pytest.raises(PaymentRequired) as caught:
        rig.compute.create(rig.request())
    is_plain(caught.value)
    assert rig.living() == []


@shown(Fault.PRICE_ROSE)
def test_a_price_that_rose_above_what_was_reserved_rents_nothing(rig: Rig) -> None:
    rig.inject(Fault.PRICE_ROSE)
    with pytest.raises((ProviderRefused, NoCapacity)) as caught:
        rig.compute.create(rig.request(is_waited_for=True))
    assert not isinstance(caught.value, FinalRefusal), "another candidate may do"
    assert rig.living() == []


@shown(Fault.BILLED_DEARER)
def test_what_is_billed_is_what_is_seen(rig: Rig) -> None:
    name, _ = rented(rig)
    rig.inject(Fault.BILLED_DEARER)
    rig.on(700)
    (pod,) = rig.named(name)
    assert pod.rate == RATE + RATE


def unwanted() -> None:
    raise ProviderRefused("another controller has given it up: nothing was sent")


@every
def test_what_is_not_wanted_any_more_is_not_asked_for(rig: Rig) -> None:
    with pytest.raises(ProviderRefused, match="nothing was sent"):
        rig.compute.create(rig.request(require_wanted=unwanted))
    rig.on(300)
    assert (rig.creates(), rig.living()) == (0, [])


# -- 429 -------------------------------------------------------------------------------------------


@shown(Fault.CREATE_THROTTLED)
def test_a_create_that_came_too_soon_is_asked_again_after_a_look(rig: Rig) -> None:
    rig.inject(Fault.CREATE_THROTTLED, times=2, retry_after_s=25)
    began_at = rig.now()
    rig.compute.create(rig.request())
    assert rig.now() - began_at == pytest.approx(50.0, abs=1.0), "as long as was asked for, twice"
    assert (rig.creates(), len(rig.living())) == (3, 1)
    assert rig.lists() == 3, "by name, each time before it asks"


@shown(Fault.CREATE_THROTTLED)
def test_an_hour_is_not_waited_for(rig: Rig) -> None:
    rig.inject(Fault.CREATE_THROTTLED, times=99, retry_after_s=3600)
    began_at = rig.now()
    with pytest.raises(FinalRefusal, match="for 3600 s; nothing was rented") as caught:
        rig.compute.create(rig.request())
    assert isinstance(caught.value, Throttled)
    assert caught.value.retry_s == 3600
    is_plain(caught.value)
    assert (rig.now(), rig.living()) == (began_at, [])


@shown(Fault.CREATE_THROTTLED)
def test_one_that_is_asked_for_again_later_does_not_wait(rig: Rig) -> None:
    rig.inject(Fault.CREATE_THROTTLED, times=1, retry_after_s=25)
    began_at = rig.now()
    with pytest.raises(Throttled):
        rig.compute.create(rig.request(is_waited_for=True))
    assert (rig.now(), rig.creates(), rig.living()) == (began_at, 1, [])


@shown(Fault.CREATE_THROTTLED)
def test_a_create_is_not_sent_after_its_time(rig: Rig) -> None:
    """Another controller may have found out by then that there is no pod."""
    rig.inject(Fault.CREATE_THROTTLED, times=1, retry_after_s=40)
    until = rig.now() + 30

    def require_wanted() -> None:
        if rig.now() > until:
            unwanted()

    with pytest.raises(ProviderRefused, match="nothing was sent"):
        rig.compute.create(rig.request(require_wanted=require_wanted))
    assert (rig.creates(), rig.living()) == (1, [])


@shown(Fault.THROTTLED)
def test_a_minute_of_429_is_waited_out_and_two_are_not(rig: Rig) -> None:
    rig.inject(Fault.THROTTLED, seconds=60, retry_after_s=25)
    rig.compute.create(rig.request())
    assert len(rig.living()) == 1
    rig.lift()
    rig.inject(Fault.THROTTLED, seconds=3600, retry_after_s=20)
    began_at = rig.now()
    with pytest.raises(FinalRefusal, match="limits the rate of requests") as caught:
        rig.compute.create(rig.request(2))
    assert "nothing was rented" in caught.value.what
    is_plain(caught.value)
    assert 60 <= rig.now() - began_at <= 115
    assert (rig.creates(), len(rig.living())) == (1, 1)


@shown(Fault.THROTTLED)
def test_whoever_is_told_to_wait_asks_no_more_until_then(rig: HttpRig) -> None:
    name, _ = rented(rig)
    rig.inject(Fault.THROTTLED, seconds=45, retry_after_s=45)
    asked = len(rig.faults.log)
    for _ in range(20):
        with pytest.raises(ProviderError, match="limits the rate"):
            rig.compute.list_pods()
        rig.on(2)
    assert len(rig.faults.log) == asked + 1
    rig.on(10)
    assert len(rig.named(name)) == 1
    rig.lift()
    rig.on(60)
    rig.inject(Fault.THROTTLED, seconds=3, retry_after_s=86_400)
    with pytest.raises(ProviderError):
        rig.compute.list_pods()
    rig.on(LONGEST_HOLD_S)
    assert len(rig.named(name)) == 1, "nor does it wait for ever"


@shown(Fault.THROTTLED)
def test_a_list_waits_as_long_as_it_is_told(rig: HttpRig) -> None:
    name, _ = rented(rig)
    rig.inject(Fault.THROTTLED, seconds=7, retry_after_s=8)
    began_at = rig.now()
    assert len(rig.named(name)) == 1
    assert rig.now() - began_at == pytest.approx(8.0, abs=0.5)


# -- the account -----------------------------------------------------------------------------------


@shown(Fault.KEY_REVOKED)
def test_a_key_that_is_not_known_is_tried_on_no_create(rig: HttpRig) -> None:
    rig.inject(Fault.KEY_REVOKED)
    for ask in (
        rig.compute.list_pods,
        lambda: rig.compute.create(rig.request()),
        lambda: rig.compute.require_account(RATE),
    ):
        with pytest.raises(AuthError) as caught:
            ask()
        assert rig.key not in str(caught.value)
        is_plain(caught.value)
        assert caught.value.exit_code == 15
        rig.on(10)
    assert (rig.creates(), rig.living()) == (0, [])


@over_http
def test_the_accounts_key_and_the_hosts_own_are_where_they_belong(rig: HttpRig) -> None:
    wanted = rig.request()
    rig.compute.create(wanted)
    texts = rig.told_to_host()
    assert any("hard_stop_at" in text for text in texts), "what is packed was looked into"
    assert not [text for text in texts if rig.key in text], "a host could rent with it"


# -- lists -----------------------------------------------------------------------------------------


@over_http
def test_a_list_outlasts_a_short_trouble(rig: HttpRig) -> None:
    name, pod_id = rented(rig)
    rig.inject(Fault.LIST_FAILS, times=3)
    began_at = rig.now()
    assert [pod.pod_id for pod in rig.named(name)] == [pod_id]
    assert 1.0 < rig.now() - began_at < 20.0, "with pauses that grow"


def not_missed(rig: Rig, name: str, pod_id: str) -> None:
    """A list that is none misses nobody."""
    began_at = rig.now()
    with pytest.raises(ProviderError):
        rig.compute.list_pods()
    assert rig.now() - began_at <= 25.0
    asked = len(rig.faults.log)
    with pytest.raises(ProviderError):
        rig.compute.list_pods()
    assert len(rig.faults.log) == asked, "nor is it asked again at once"
    with pytest.raises(ProviderError):
        rig.compute.create(rig.request(2))
    assert rig.living().count(name) == 1
    rig.lift()
    rig.on(70)
    assert [pod.pod_id for pod in rig.named(name)] == [pod_id]
    assert not present(rig.compute.bill(pod_id)).final, "it was never thought to be gone"


@shown(Fault.LIST_FAILS)
def test_an_outage_is_an_error_and_not_an_empty_list(rig: Rig) -> None:
    name, pod_id = rented(rig)
    creates = rig.creates()
    rig.inject(Fault.LIST_FAILS)
    not_missed(rig, name, pod_id)
    assert rig.creates() == creates, "nothing is asked for where nobody can look"


@over_http
def test_without_a_list_nothing_is_asked_for_and_that_is_said(rig: Rig) -> None:
    rig.inject(Fault.LIST_FAILS)
    with pytest.raises(ProviderRefused, match="nothing was rented") as caught:
        rig.compute.create(rig.request())
    assert not isinstance(caught.value, FinalRefusal)
    assert (rig.creates(), rig.living()) == (0, [])


@pytest.mark.parametrize("body", UNREADABLE.values(), ids=list(UNREADABLE))
@shown(Fault.LIST_GARBLED)
def test_a_list_that_cannot_be_read_is_none(rig: Rig, body: bytes) -> None:
    name, pod_id = rented(rig)
    rig.inject(Fault.LIST_GARBLED, body=body)
    not_missed(rig, name, pod_id)


@shown(Fault.LIST_ROW_UNNAMED)
def test_a_row_that_could_be_ours_is_not_passed_over(rig: Rig) -> None:
    name, pod_id = rented(rig)
    rig.inject(Fault.LIST_ROW_UNNAMED)
    not_missed(rig, name, pod_id)


@shown(Fault.LIST_CUT)
def test_a_part_of_a_list_is_none(rig: HttpRig) -> None:
    wanted = rig.request()
    pod_id = rig.compute.create(wanted)
    rig.compute.create(rig.request(2))
    rig.on(60)
    rig.inject(Fault.LIST_CUT)
    not_missed(rig, wanted.name, pod_id)
    assert len(rig.compute.list_pods()) >= 2, "every page is read"
    assert rig.compute.create(wanted) == pod_id, "and before a create"


@shown(Fault.STATUS_NEW)
def test_a_status_that_is_not_known_counts_as_spending(rig: Rig) -> None:
    name, _ = rented(rig)
    rig.inject(Fault.STATUS_NEW)
    rig.on(60)
    (pod,) = rig.named(name)
    assert pod.status == "unknown"
    assert pod.rate == RATE


@shown(Fault.LIST_OMITS)
def test_a_machine_that_a_list_omits_is_not_ended(rig: Rig) -> None:
    name, pod_id = rented(rig)
    rig.inject(Fault.LIST_OMITS, name=name)
    rig.on(60)
    listed = [pod.pod_id for pod in rig.named(name)]
    assert listed == ([pod_id] if rig.omitted == "listed" else [])
    if rig.omitted == "cross_listed":
        shown_there = rig.named(name, cross=True)
        assert [(pod.pod_id, pod.rate) for pod in shown_there] == [(pod_id, RATE)]
    bill = present(rig.compute.bill(pod_id))
    assert not bill.final, "a list may omit a machine for a moment"
    assert bill.amount >= cost(RATE, 60)
    rig.lift()
    rig.on(60)
    (pod,) = rig.named(name)
    assert (pod.pod_id, pod.status) == (pod_id, "running")
    rig.on(1800)
    assert not present(rig.compute.bill(pod_id)).final, "it is back"


@shown(Fault.LIST_OMITS)
def test_what_is_omitted_can_be_ended_by_its_name(rig: Rig) -> None:
    name, _ = rented(rig)
    assert rig.named(name, cross=True) == []
    rig.inject(Fault.LIST_OMITS, name=name)
    rig.on(60)
    rig.compute.list_pods()
    assert rig.compute.terminate(name) is True
    assert rig.living() == []
    asked = []
    for _ in range(2):
        rig.on(60)
        assert rig.named(name) == []
        asked.append(len(rig.faults.log))
    assert asked[1] - asked[0] <= 3, "what has ended is not asked for"


@shown(Fault.LIST_OMITS, Fault.ONE_FAILS)
def test_an_omission_that_cannot_be_looked_into_makes_the_list_unknown(rig: Rig) -> None:
    name, pod_id = rented(rig)
    rig.inject(Fault.LIST_OMITS, name=name)
    rig.inject(Fault.ONE_FAILS)
    rig.on(60)
    not_missed(rig, name, pod_id)


@shown(Fault.LIST_OMITS, Fault.ONE_FAILS)
def test_what_another_home_made_is_asked_for_by_the_id_in_the_ledger(rig: Rig) -> None:
    name, pod_id = rented(rig)
    rig.inject(Fault.LIST_OMITS, name=name)
    other = rig.another()
    assert other.list_pods() == ()
    for _ in range(2):  # at each look, for as long as the ledger says that it may live
        rig.on(10)
        other.expect(pod_id)
        assert [pod.pod_id for pod in other.list_pods()] == [pod_id]
    assert other.terminate(pod_id) is True
    rig.on(10)
    other.expect(pod_id)
    assert [pod for pod in other.list_pods() if not pod.gone] == []


@shown(Fault.TWIN)
def test_of_twins_both_are_seen_billed_and_ended(rig: Rig) -> None:
    wanted = rig.request()
    rig.inject(Fault.TWIN)
    rig.compute.create(wanted)
    rig.on(60)
    assert len({pod.pod_id for pod in rig.named(wanted.name)}) == 2
    assert rig.compute.create(wanted) in {pod.pod_id for pod in rig.named(wanted.name)}
    assert rig.living() == [wanted.name] * 2
    rig.on(1800)
    rig.compute.list_pods()
    assert present(rig.compute.bill(wanted.name)).amount >= cost(RATE, 2 * 1800)
    assert rig.compute.terminate(wanted.name) is True
    assert rig.living() == []


@shown(Fault.FOREIGN)
def test_what_is_not_ours_is_left_alone(rig: Any) -> None:
    name, _ = rented(rig)
    rig.inject(Fault.FOREIGN)
    rig.on(60)
    living = rig.living()
    rig.compute.list_pods()
    with pytest.raises(ProviderError, match=r"not a (pod|job) of trmcloud") as caught:
        rig.compute.terminate(rig.foreign_id)
    is_plain(caught.value)
    assert rig.living() == living
    assert rig.compute.terminate(name) is True
    assert name not in rig.living()


# -- ends ------------------------------------------------------------------------------------------


def not_ended(rig: Rig, name: str, pod_id: str) -> None:
    for named in (pod_id, name):
        with pytest.raises(ProviderError):
            rig.compute.terminate(named)
    assert rig.living() == [name]
    rig.lift()
    rig.on(60)
    assert [pod.pod_id for pod in rig.named(name)] == [pod_id]
    assert rig.compute.terminate(name) is True
    assert rig.living() == []


@shown(Fault.END_FAILS)
def test_an_end_that_fails_is_no_end(rig: Rig) -> None:
    name, pod_id = rented(rig)
    rig.inject(Fault.END_FAILS)
    not_ended(rig, name, pod_id)


@shown(Fault.END_FORBIDDEN)
def test_an_end_that_is_refused_is_no_end(rig: Rig) -> None:
    name, pod_id = rented(rig)
    rig.inject(Fault.END_FORBIDDEN)
    not_ended(rig, name, pod_id)


@shown(Fault.END_NOT_FOUND)
def test_404_is_no_error_and_no_proof(rig: Rig) -> None:
    name, pod_id = rented(rig)
    rig.inject(Fault.END_NOT_FOUND)
    assert rig.compute.terminate(pod_id) is False
    rig.on(60)
    assert [pod.pod_id for pod in rig.named(name)] == [pod_id]
    assert not present(rig.compute.bill(pod_id)).final
    rig.lift()
    assert rig.compute.terminate(pod_id) is True
    assert rig.living() == []


@shown(Fault.END_IN_VAIN)
def test_an_end_that_was_taken_in_vain_is_seen_and_taken_again(rig: Rig) -> None:
    name, pod_id = rented(rig)
    rig.inject(Fault.END_IN_VAIN)
    assert rig.compute.terminate(pod_id) is True
    rig.on(60)
    assert [pod.pod_id for pod in rig.named(name)] == [pod_id]
    rig.lift()
    assert rig.compute.terminate(pod_id) is True
    rig.on(60)
    assert (rig.living(), rig.named(name)) == ([], [])


@every
def test_another_command_ends_a_machine_by_its_name(rig: Rig) -> None:
    name, _ = rented(rig)
    other = rig.another()
    assert other.terminate(name) is True
    assert rig.living() == []
    assert other.terminate(rig.request(9).name) is False


# -- bills -----------------------------------------------------------------------------------------


@every
def test_a_bill_is_of_the_whole_life_and_by_name_as_by_id(rig: Rig) -> None:
    name, pod_id = rented(rig)
    for _ in range(3):
        rig.on(900)
        rig.compute.list_pods()
    early = present(rig.compute.bill(pod_id))
    assert (early.final, early) == (False, rig.compute.bill(name))
    assert cost(RATE, 2700) <= early.amount <= cost(RATE, 2900) + Usd("0.10")
    rig.compute.terminate(pod_id)
    rig.on(10)
    assert rig.named(name) == []
    rig.on(4000)
    final = present(rig.compute.bill(pod_id))
    assert final.final
    assert cost(RATE, 2700) <= final.amount <= cost(RATE, 2900) + Usd("0.10")
    assert rig.compute.bill(rig.request(9).name) is None


@shown(Fault.BILL_FAILS)
def test_a_bill_that_cannot_be_read_is_an_error_and_no_amount(rig: Rig) -> None:
    _, pod_id = rented(rig)
    rig.inject(Fault.BILL_FAILS)
    with pytest.raises(ProviderError):
        rig.compute.bill(pod_id)
    rig.lift()
    rig.on(60)
    assert rig.compute.bill(pod_id) is not None


@shown(Fault.BILL_LATE)
def test_what_is_not_billed_yet_is_never_nothing(rig: Rig) -> None:
    _, pod_id = rented(rig)
    rig.inject(Fault.BILL_LATE)
    rig.on(1800)
    rig.compute.list_pods()
    rig.compute.terminate(pod_id)
    rig.on(10)
    bill = present(rig.compute.bill(pod_id))
    assert not bill.final
    assert bill.amount >= cost(RATE, 1800)
    for _ in range(3):
        rig.on(4 * 3600)
        bill = present(rig.compute.bill(pod_id))
    assert bill.final
    assert bill.amount >= cost(RATE, 1800)
    assert bill.amount > ZERO


# -- logs ------------------------------------------------------------------------------------------


@shown(Fault.LOG_GONE)
def test_a_log_that_is_gone_says_nothing_and_breaks_nothing(rig: Rig) -> None:
    pod_id = rig.compute.create(rig.request())
    rig.boots_badly(pod_id)
    rig.inject(Fault.LOG_GONE)
    assert rig.why(pod_id) == ""
