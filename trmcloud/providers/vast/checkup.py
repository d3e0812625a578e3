"""The checks of a vast.ai account for ``doctor``: the key, its scopes and its credit."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from trmcloud.core.errors import AccessDenied, ProviderError, TrmcloudError
from trmcloud.core.money import Usd
from trmcloud.operations.checks.doctor import Finding
from trmcloud.providers.seller import check_scopes
from trmcloud.providers.vast import secrets
from trmcloud.providers.vast.api import VastApi
from trmcloud.providers.vast.offers import market

_BOUND_S = 10.0
_KEYS_PAGE = "vast.ai console → Keys"


def check_account(
    environ: Mapping[str, str], rate: Usd | None = None, now: Callable[[], float] = time.time
) -> list[Finding]:
    """``rate`` is the USD/h of what is meant to be rented, where that is known."""
    key = secrets.account_key(environ)
    if key is None:
        fix = f"to rent there: {_KEYS_PAGE}, then set {secrets.ENV_KEY}"
        return [Finding("vast key", "warn", "none: no machine can be rented from vast.ai", fix)]
    try:
        api = VastApi(key, secrets.api_base(environ), now=now, bound_s=_BOUND_S)
        instances = api.instances()
    except TrmcloudError as error:
        return [Finding("vast key", "bad", error.what, error.next_step)]
    found = [Finding("vast key", "ok", f"known; {len(instances)} instances in the account")]
    return [*found, _scopes(api, now()), _credit(api, rate)]


def _scopes(api: VastApi, now: float) -> Finding:
    questions: Mapping[str, Callable[[], object]] = {
        "search offers": lambda: market(api, now, community=False),
        "read charges": lambda: api.charges(now - 3600.0, now),
    }
    return check_scopes(
        "vast scopes", questions, f"{_KEYS_PAGE}: instances read and write, billing read"
    )


def _credit(api: VastApi, rate: Usd | None) -> Finding:
    fix = "add credit: vast.ai console → Billing; at zero all instances are stopped"
    try:
        balance = api.credit()
    except AccessDenied as error:
        return Finding("vast credit", "warn", error.what, f"{_KEYS_PAGE}: billing, read")
    except ProviderError as error:
        return Finding("vast credit", "warn", error.what, error.next_step)
    if balance is None:
        return Finding(
            "vast credit", "warn", "vast.ai did not report it", "console → Billing shows it"
        )
    if balance <= Usd(0):
        return Finding("vast credit", "bad", f"{balance}: empty", fix)
    if rate is not None and balance < rate:
        return Finding("vast credit", "bad", f"{balance}, less than one hour of {rate}/h", fix)
    return Finding("vast credit", "ok", str(balance))
