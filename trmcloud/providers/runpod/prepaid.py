"""The account's money, which GraphQL alone tells: if it covers a launch, and what it bounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf

from trmcloud.core.errors import AccessDenied, PaymentRequired, ProviderError
from trmcloud.core.money import ZERO, Usd
from trmcloud.ports.compute import OwnLimit
from trmcloud.providers.runpod.account import GraphqlUnavailable, RunPodGraphql

FRESH_S = 300.0
BOUND_S = 3.0
"""How long a screen waits for the balance, which it can do without."""


class Prepaid:
    """What is asked for a screen is kept for ``FRESH_S``."""

    def __init__(self, graphql: RunPodGraphql, now: Callable[[], float]) -> None:
        self._graphql = graphql
        self._now = now
        self._limit: tuple[float, OwnLimit | None] = (-inf, None)

    def require(self, rate: Usd) -> None:
        """See that it covers ``rate`` an hour; where it is not told, nothing is said.

        Raises:
            PaymentRequired: it does not.
        """
        try:
            balance, spending, limit = self._graphql.account()
        except ProviderError:
            return
        if balance is not None and balance < rate:
            raise PaymentRequired(
                f"the RunPod balance is {balance}: below an hour of {rate}, which RunPod asks for",
                next_step="add credit: RunPod console → Billing",
            )
        if limit is not None and (spending or ZERO) + rate > limit:
            raise PaymentRequired(
                f"RunPod's spend limit is {limit}/h for the account, {spending or ZERO}/h are in "
                f"use: {rate}/h more does not fit",
                next_step="stop other pods, choose smaller hardware, or ask RunPod for more",
            )

    def limits(self) -> Sequence[OwnLimit]:
        """Whether the balance bounds what is spent; nothing where that cannot be told for the
        moment."""
        asked_at, limit = self._limit
        if not 0 <= self._now() - asked_at < FRESH_S:
            limit = self._ask()
            self._limit = (self._now(), limit)
        return (limit,) if limit is not None else ()

    def _ask(self) -> OwnLimit | None:
        try:
            balance = self._graphql.account(BOUND_S).balance
        except (AccessDenied, GraphqlUnavailable) as error:
            return OwnLimit("prepaid", False, f"the balance is not known any more: {error.what}")
        except ProviderError:
            return None
        if balance is None:
            return OwnLimit("prepaid", False, "RunPod does not tell the balance")
        told = f"a balance of {balance} ends everything, unless auto-reload refills it"
        return OwnLimit("prepaid", balance > ZERO, told)
