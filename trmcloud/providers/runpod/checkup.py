"""The checks of a RunPod account for ``doctor``: the key, its scopes, its money, and the clocks."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from trmcloud.core.control.balance import Billing, prepaid_limit
from trmcloud.core.errors import AccessDenied, AuthError, MissingExtra, ProviderError, TrmcloudError
from trmcloud.core.money import Usd
from trmcloud.operations.checks.doctor import Finding
from trmcloud.providers.runpod import secrets
from trmcloud.providers.seller import check_scopes

if TYPE_CHECKING:
    from trmcloud.core.control.balance import AccountBalance
    from trmcloud.providers.runpod.account import RunPodGraphql
    from trmcloud.providers.runpod.api import RunPodApi

_BOUND_S = 10.0
_SKEW_WARN_S, _SKEW_BAD_S = 5.0, 60.0
_KEYS_PAGE = "RunPod console → Settings → API Keys"
_GUARD = "a second kill layer: trmcloud admin guard install on another machine that stays on"
_NOBODYS_POD = "trmcloud0doctor"
"""No pod has this id: asking for its end shows whether the key permits: write, and ends nothing."""


def check_account(
    environ: Mapping[str, str], rate: Usd | None = None, now: Callable[[], float] = time.time
) -> list[Finding]:
    """``rate`` is the USD/h of what is meant to be rented, where that is known."""
    key = secrets.account_key(environ)
    if key is None:
        fix = f"to rent there: {_KEYS_PAGE}, then set {secrets.ENV_KEY}"
        return [Finding("runpod key", "warn", "none: no machine can be rented from RunPod", fix)]
    try:
        secrets.require_client()
    except MissingExtra as error:
        return [Finding("runpod key", "bad", str(error), error.next_step)]
    from trmcloud.providers.runpod.account import RunPodGraphql
    from trmcloud.providers.runpod.api import RunPodApi
    from trmcloud.providers.runpod.http import Http

    try:
        http = Http(key, now=now, bound_s=_BOUND_S)
        api = RunPodApi(http, secrets.api_base(environ))
        graphql = RunPodGraphql(http, secrets.graphql_url(environ))
    except TrmcloudError as error:
        return [Finding("runpod key", "bad", str(error), error.next_step)]
    try:
        found = [_key(api)]
        if found[0].state == "bad":
            return found
        return [*found, _scopes(api, now()), *_money(api, graphql, rate, now), _skew(http.skew_s)]
    finally:
        http.close()


def _key(api: RunPodApi) -> Finding:
    try:
        pods = api.pods()
    except AccessDenied as error:
        # A key that RunPod knows: what it may do is the next finding.
        return Finding("runpod key", "warn", f"known; {error.what}", error.next_step)
    except (AuthError, ProviderError) as error:
        return Finding("runpod key", "bad", error.what, error.next_step)
    return Finding("runpod key", "ok", f"known; {len(pods)} pods in the account")


def _scopes(api: RunPodApi, now: float) -> Finding:
    questions: Mapping[str, Callable[[], object]] = {
        "read pods": api.pods,
        "end pods": lambda: api.delete_pod(_NOBODYS_POD),
        "read network volumes": api.volumes,
        "read bills": lambda: api.billing(starts_at=now - 3600.0, ends_at=now),
        "read the catalogue": lambda: api.catalogue({}),
    }
    fix = f"{_KEYS_PAGE}: read and write for pods and volumes, read for billing"
    return check_scopes("scopes", questions, fix)


def _money(
    api: RunPodApi, graphql: RunPodGraphql, rate: Usd | None, now: Callable[[], float]
) -> list[Finding]:
    from trmcloud.providers.runpod.account import GraphqlUnavailable, RunPodMoney

    try:
        account = RunPodMoney(api, graphql, now).account()
    except GraphqlUnavailable as error:
        detail = f"{error.what}: the balance and the spend limit are not available"
        return [Finding("balance", "warn", detail, _GUARD), _second_look(api)]
    except AuthError as error:
        fix = f"{_KEYS_PAGE}: billing:read and account:read"
        return [Finding("balance", "warn", error.what, fix)]
    except ProviderError as error:
        return [Finding("balance", "warn", error.what, error.next_step)]
    return [_balance(account, rate), _limit(account.spend_limit, account.spending, rate)]


def _second_look(api: RunPodApi) -> Finding:
    """Check the other sources of running pods, now that GraphQL does not answer."""
    try:
        pods, records = api.pods(cluster_members=True), api.billed_lately()
    except ProviderError as error:
        return Finding("pods", "warn", error.what, error.next_step)
    from trmcloud.providers.runpod.models import usd_exact

    billed = sum((usd_exact(max(0.0, record.totalAmount)) for record in records), Usd(0))
    many = len({record.podId for record in records})
    detail = f"{len(pods)}, clusters included; {billed} billed to {many} since last hour"
    return Finding("pods", "ok", detail)


def _balance(account: AccountBalance, rate: Usd | None) -> Finding:
    balance, bounds = account.balance, prepaid_limit(account)
    if balance is None:
        return Finding("balance", "warn", f"not known: {bounds[1]}", "see the console → Billing")
    if account.billing is not Billing.PREPAID:
        return Finding("balance", "warn", f"{balance}; no kill layer: {bounds[1]}", _GUARD)
    fix = "add credit: console → Billing; RunPod requires the price of one hour in advance"
    if balance <= Usd(0):
        return Finding("balance", "bad", f"{balance}: empty", fix)
    if rate is not None and balance < rate:
        return Finding(
            "balance", "bad", f"{balance}, less than one hour of the plan's {rate}/h", fix
        )
    return Finding("balance", "ok", f"{balance}, a prepaid account")


def _limit(limit: Usd | None, spending: Usd | None, rate: Usd | None) -> Finding:
    if limit is None:
        return Finding("limit", "warn", "RunPod did not report it", "see the console → Billing")
    now = spending if spending is not None else Usd(0)
    text = f"{limit}/h for the account, {now}/h in use"
    if rate is not None and now + rate > limit:
        fix = "stop other pods, choose smaller hardware, or ask RunPod for a higher limit"
        return Finding("limit", "bad", f"{text}: the plan's {rate}/h does not fit", fix)
    return Finding("limit", "ok", text)


def _skew(skew_s: float | None) -> Finding:
    if skew_s is None:
        return Finding("skew", "warn", "RunPod sent no date", "check this machine's clock (NTP)")
    side = "ahead of" if skew_s > 0 else "behind"
    text = f"this clock is {abs(skew_s):.0f} s {side} RunPod's"
    if abs(skew_s) > _SKEW_BAD_S:
        return Finding("skew", "bad", text, "set the clock (NTP): stops use absolute time")
    if abs(skew_s) > _SKEW_WARN_S:
        return Finding("skew", "warn", text, "set the clock (NTP)")
    return Finding("skew", "ok", f"within {max(1, round(abs(skew_s)))} s of RunPod's clock")
