"""The account's money, and a second list of pods: what REST v2 has no word for.

RunPod is retiring GraphQL: its rate is being cut in stages, and early in 2027 it answers 410. Both
mean that it cannot be had, and nothing about the key or the money.

RunPod's own SDK asks the same questions of the same address; it is not imported, see
``docs/decisions/0008-runpod-without-its-sdk.md``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Any

from trmcloud.core.control.balance import AccountBalance
from trmcloud.core.control.observation import PodSeen, PodStatus
from trmcloud.core.errors import AccessDenied, PaymentRequired, ProviderError
from trmcloud.core.money import ZERO, Usd
from trmcloud.ports.compute import ProviderLimit, ThrottledError
from trmcloud.providers.runpod.http import ApiRetired, Http, NotThere
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


# -- prepaid ------------------------------------------------------------

FRESH_S = 300.0
AT_ONCE_S = 10.0
"""One answer serves all who ask within this time."""
SCREEN_S = 3.0
"""The time that a screen waits for the balance, which it can do without."""


class PrepaidBalance:
    """The account's balance, kept for ``FRESH_S`` when it is asked for a screen."""

    def __init__(self, graphql: RunPodGraphql, now: Callable[[], float]) -> None:
        self._graphql = graphql
        self._now = now
        self._limit: tuple[float, ProviderLimit | None] = (-inf, None)
        self._read: tuple[float, AccountBalance] | None = None

    def account(self) -> AccountBalance:
        """Return the account's money as it is now, or was a moment ago.

        Raises:
            GraphqlUnavailable, AuthError, AccessDenied, ProviderError: see ``RunPodGraphql``.
        """
        if self._read is None or not 0 <= self._now() - self._read[0] < AT_ONCE_S:
            account = self._graphql.account()
            self._read = (self._now(), account)
        return self._read[1]

    def forget(self) -> None:
        """A create was asked for: what was read before it does not hold any more."""
        self._read = None

    def require(self, rate: Usd) -> None:
        """See that it covers ``rate`` an hour; where it is not told, nothing is said.

        Raises:
            PaymentRequired: it does not.
        """
        try:
            account = self.account()
        except ProviderError:
            return
        balance, spending, limit = account.balance, account.spending, account.spend_limit
        if balance is not None and balance < rate:
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
        """Return the balance as a limit of spending; empty where that is unknown for the moment."""
        asked_at, limit = self._limit
        if not 0 <= self._now() - asked_at < FRESH_S:
            limit = self._ask()
            self._limit = (self._now(), limit)
        return (limit,) if limit is not None else ()

    def _ask(self) -> ProviderLimit | None:
        try:
            balance = self._graphql.account(SCREEN_S).balance
        except (AccessDenied, GraphqlUnavailable) as error:
            return ProviderLimit(
                "prepaid", False, f"the balance is no longer available: {error.what}"
            )
        except ProviderError:
            return None
        if balance is None:
            return ProviderLimit("prepaid", False, "RunPod does not report the balance")
        told = (
            f"a balance of {balance} ends everything when it is used up, unless auto-reload is on"
        )
        return ProviderLimit("prepaid", balance > ZERO, told)
