"""``trmcloud doctor``'s checks of a Hugging Face account: the token, jobs, prices."""

from __future__ import annotations

from collections.abc import Mapping

from trmcloud.core.errors import AccessDenied, ProviderError, TrmcloudError
from trmcloud.operations.checks.doctor import Finding
from trmcloud.providers.huggingface import secrets
from trmcloud.providers.huggingface.api import JobsApi
from trmcloud.providers.huggingface.http import Http

_TOKEN = "huggingface token"


def check_account(environ: Mapping[str, str], *, needed: bool) -> list[Finding]:
    """``needed``: it was rented from, or is planned for. Without that nothing is asked or shown: a
    token may be there to read data alone."""
    if not needed:
        return []
    token = secrets.account_token(environ)
    if token is None:
        fix = f"hf auth login, or {secrets.TOKENS_PAGE} and HF_TOKEN"
        return [Finding(_TOKEN, "warn", "none: no job can be started or ended there", fix)]
    try:
        api = JobsApi(Http(secrets.endpoint(environ), token), secrets.namespace(environ))
        where = api.namespace()
        jobs = api.jobs()
    except AccessDenied as error:
        return [Finding(_TOKEN, "bad", f"known; {error.what}", error.next_step)]
    except TrmcloudError as error:
        return [Finding(_TOKEN, "bad", error.what, error.next_step)]
    found = [Finding(_TOKEN, "ok", f"known; {len(jobs)} live jobs of {where}")]
    try:
        listed = api.hardware()
    except ProviderError as error:
        return [*found, Finding("huggingface hardware", "warn", error.what, error.next_step)]
    return [*found, Finding("huggingface hardware", "ok", f"{len(listed)} flavors with prices")]
