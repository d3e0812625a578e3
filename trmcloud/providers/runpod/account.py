"""The account's money, by REST v2 and GraphQL, and GraphQL's list of pods.

RunPod is retiring GraphQL: its rate is being cut in stages, and early in 2027 it answers 410. Both
mean that it cannot be had, and nothing about the key or the money.

RunPod's own SDK asks the same questions of the same address; it is not imported, see
``docs/decisions/0008-runpod-without-its-sdk.md``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from math import inf
from typing import Any

from trmcloud.core.control.balance import AccountBalance, Billing, prepaid_limit
from trmcloud.core.control.observation import PodSeen, PodStatus
from trmcloud.core.errors import AccessDenied, PaymentRequired, ProviderError
from trmcloud.core.money import ZERO, Usd
from trmcloud.core.values import replace
from trmcloud.ports.compute import ProviderLimit, ThrottledError
from trmcloud.providers.client import NotThere
from trmcloud.providers.runpod.api import RunPodApi
from trmcloud.providers.runpod.http import ApiRetired, Http
from trmcloud.providers.runpod.models import usd, usd_exact

_ACCOUNT = "query { myself { id clientBalance currentSpendPerHr spendLimit } }"
_PODS = "query { myself { pods { id name desiredStatus costPerHr } } }"
BOUND_S = 6.0
"""The time limit of a request that the caller can do without."""
_CODES = {ApiRetired: 410, NotThere: 404, ThrottledError: 429}
_DENIED = ("unauthorized", "forbidden", "not authorized", "access denied")


class GraphqlUnavailable(ProviderError):
    """GraphQL is retired, or rations its answers: what only it knows is not known."""


class RunPodGraphql:
    """``url`` is GraphQL's whole address."""

    def __init__(self, http: Http, url: str) -> None:
        self.http = http
        self._url = url

    def account(self, bound_s: float = BOUND_S) -> AccountBalance:
        """Return the account's figures of its money.

        Raises:
            GraphqlUnavailable: it has been retired, or rations its answers.
            AuthError, AccessDenied: the key is wrong, or may not ask.
            ProviderError: no answer, or one that cannot be understood.
        """
        myself = self._myself(_ACCOUNT, bound_s)
        return AccountBalance(
            balance=self._amount(myself, "clientBalance", exact=True),
            spending=self._amount(myself, "currentSpendPerHr"),
            spend_limit=self._amount(myself, "spendLimit"),
        )

    def pods(self) -> list[PodSeen]:
        """All pods of the account in GraphQL's own list; what they do is not taken from it.

        Raises:
            GraphqlUnavailable, AuthError, ProviderError: as ``account``.
        """
        rows = self._myself(_PODS, BOUND_S).get("pods")
        if not isinstance(rows, list):
            raise self._odd("pods")
        return [self._pod(row) for row in rows]

    def _pod(self, row: Any) -> PodSeen:
        if not isinstance(row, dict):
            raise self._odd("pods")
        pod_id, name, cost = row.get("id"), row.get("name"), row.get("costPerHr")
        if not isinstance(pod_id, str) or not pod_id or not isinstance(name, str):
            raise self._odd("pods.id")
        # GraphQL tells what is wanted of a pod, not what it does.
        ended = row.get("desiredStatus") == "TERMINATED"
        status = PodStatus.GONE if ended else PodStatus.UNKNOWN
        rate = Usd(0)
        if isinstance(cost, int | float) and not isinstance(cost, bool) and cost >= 0:
            rate = usd(float(cost))
        return PodSeen(pod_id, name, status, rate)

    def _myself(self, query: str, bound_s: float) -> dict[str, Any]:
        where = self.http.where("POST", self._url)
        try:
            response = self.http.read("POST", self._url, body={"query": query}, bound_s=bound_s)
        except (ApiRetired, NotThere, ThrottledError) as error:
            raise GraphqlUnavailable(
                f"RunPod's GraphQL answers {_CODES[type(error)]}",
                where=where,
                next_step="RunPod is retiring GraphQL; see the console → Billing",
            ) from None
        data = self.http.json(response, where)
        errors = data.get("errors")
        if errors:
            said = self._said(errors)
            if any(word in said.casefold() for word in _DENIED):
                raise AccessDenied(
                    f"the RunPod key does not permit this: {said}",
                    where=where,
                    next_step="give the key access to GraphQL and billing",
                )
            raise ProviderError(f"RunPod: {said}", where=where, next_step="try again in a minute")
        inner = data.get("data")
        myself = inner.get("myself") if isinstance(inner, dict) else None
        if not isinstance(myself, dict):
            raise self._odd("myself")
        return myself

    def _said(self, errors: Any) -> str:
        rows = errors if isinstance(errors, list) else [errors]
        texts = [str(row.get("message", "")) if isinstance(row, dict) else str(row) for row in rows]
        codes = [
            str(row["extensions"].get("code", ""))
            for row in rows
            if isinstance(row, dict) and isinstance(row.get("extensions"), dict)
        ]
        return self.http.clean("; ".join(text for text in (*texts, *codes) if text)) or "an error"

    def _amount(self, row: dict[str, Any], name: str, *, exact: bool = False) -> Usd | None:
        number = row.get(name)
        if number is None:
            return None
        if not isinstance(number, int | float) or isinstance(number, bool):
            raise self._odd(name)
        return usd_exact(float(number)) if exact else usd(float(number))

    def _odd(self, what: str) -> ProviderError:
        return ProviderError(
            f"RunPod's answer has a new form: {what}",
            where=self.http.where("POST", self._url),
            next_step="GraphQL ends early in 2027; check for a newer trmcloud",
        )


# -- the account's money ------------------------------------------------

FRESH_S = 300.0
AT_ONCE_S = 10.0
"""One answer serves all who ask within this time."""
SCREEN_S = 3.0
"""The time that a screen waits for the balance, which it can do without."""
NO_SCOPE = "the key lacks the scope billing:read"
NO_ADDRESS = "RunPod's REST v2 has no balance at /v2/billing/balance"


class RunPodMoney:
    """The account's balance, billing mode and spend limit: by REST v2, and by GraphQL what v2 does
    not say.

    Whether the account is prepaid is known from REST v2 alone. RunPod's ``X-Team-Id`` is for
    sessions of its console: a key made in a team acts for that team.
    """

    def __init__(self, api: RunPodApi, graphql: RunPodGraphql, now: Callable[[], float]) -> None:
        self._api, self._graphql = api, graphql
        self._now = now
        self._limit: tuple[float, ProviderLimit | None] = (-inf, None)
        self._read: tuple[float, AccountBalance] | None = None

    def account(self) -> AccountBalance:
        """Return the account's money as it is now, or was a moment ago.

        Raises:
            GraphqlUnavailable, AuthError, AccessDenied, ProviderError: nothing of it is known.
        """
        if self._read is None or not 0 <= self._now() - self._read[0] < AT_ONCE_S:
            account = self._ask(BOUND_S)
            self._read = (self._now(), account)
        return self._read[1]

    def _ask(self, bound_s: float) -> AccountBalance:
        account = AccountBalance()
        try:
            told = self._api.account_money(bound_s)
            account = AccountBalance(usd_exact(told.balanceAmount), billing=told.billing)
        except AccessDenied:
            account = AccountBalance(why=NO_SCOPE)
        except NotThere:
            account = AccountBalance(why=NO_ADDRESS)
        with suppress(AccessDenied, NotThere):
            rate = self._api.spend_rate(bound_s)
            limit, spending = (
                usd(each) if each is not None and each >= 0 else None
                for each in (rate.limit, rate.current)
            )
            account = replace(account, spend_limit=limit, spending=spending)
        if None not in (account.balance, account.spending, account.spend_limit):
            return account
        try:
            other = self._graphql.account(bound_s)
        except ProviderError:
            if account.balance is None and account.spend_limit is None:
                raise
            return account
        return replace(
            account,
            balance=other.balance if account.balance is None else account.balance,
            spending=other.spending if account.spending is None else account.spending,
            spend_limit=other.spend_limit if account.spend_limit is None else account.spend_limit,
        )

    def forget(self) -> None:
        """A create was asked for: what was read before it does not hold any more."""
        self._read = None

    def require(self, rate: Usd) -> None:
        """See that the account can take ``rate`` more an hour; what is not known refuses nothing.

        Raises:
            PaymentRequired: a prepaid balance lacks an hour of it, or the spend limit is reached.
        """
        try:
            account = self.account()
        except ProviderError:
            return
        balance, spending, limit = account.balance, account.spending, account.spend_limit
        if account.billing is Billing.PREPAID and balance is not None and balance < rate:
            raise PaymentRequired(
                f"the RunPod balance is {balance}: RunPod requires one hour of {rate}",
                next_step="add credit: RunPod console → Billing",
            )
        if limit is not None and (spending or ZERO) + rate > limit:
            raise PaymentRequired(
                f"RunPod's spend limit is {limit}/h for the account, and {spending or ZERO}/h are "
                f"in use: {rate}/h more does not fit",
                next_step="stop other pods, choose smaller hardware, or ask RunPod for a "
                "higher limit",
            )

    def limits(self) -> Sequence[ProviderLimit]:
        """Return the balance as a limit of spending, armed if the account is known to be prepaid;
        empty where that is unknown for the moment."""
        asked_at, limit = self._limit
        if not 0 <= self._now() - asked_at < FRESH_S:
            limit = self._ask_limit()
            self._limit = (self._now(), limit)
        return (limit,) if limit is not None else ()

    def _ask_limit(self) -> ProviderLimit | None:
        try:
            return ProviderLimit("prepaid", *prepaid_limit(self._ask(SCREEN_S)))
        except (AccessDenied, GraphqlUnavailable) as error:
            return ProviderLimit("prepaid", False, f"the balance is not available: {error.what}")
        except ProviderError:
            return None
