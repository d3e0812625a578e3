"""The Hub's address, the account's token, and what may never be given to a job.

Nothing heavy is imported here, so that a command can ask whether there is a token at all.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from trmcloud.core.catalog.torch_builds import POD_IMAGE
from trmcloud.core.errors import NotSupported
from trmcloud.providers.seller import require_safe

ENV_OWN_TOKEN = "TRMCLOUD_HF_TOKEN"
"""A token that may start jobs, where ``HF_TOKEN`` is one that only reads data."""
ENV_TOKEN = "HF_TOKEN"
ENV_ENDPOINT = "HF_ENDPOINT"
"""The Hub's base URL, the name that ``huggingface_hub`` reads."""
ENV_NAMESPACE = "TRMCLOUD_HF_NAMESPACE"
"""The organisation that jobs are billed to; the token's own user without it."""
ENV_SSH_KEY = "TRMCLOUD_HF_SSH_KEY"
"""The file of the private key whose public one is registered at ``SSH_KEYS_PAGE``; ssh's own choice
without it."""
ENV_IMAGE = "TRMCLOUD_HF_IMAGE"

ENDPOINT = "https://huggingface.co"
TOKENS_PAGE = "https://huggingface.co/settings/tokens"
SSH_KEYS_PAGE = "https://huggingface.co/settings/keys"

TOKEN_VARIABLES = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HUGGINGFACE_TOKEN", ENV_OWN_TOKEN)
_MAX_TOKEN_BYTES = 4096
_TOKEN = re.compile(r"\bhf_[A-Za-z0-9]{20,}\b|\bapi_org_[A-Za-z0-9]{20,}\b")
"""A token of a user's or an organisation's, by its form."""


def account_token(environ: Mapping[str, str]) -> str | None:
    """The token that may start jobs: ``TRMCLOUD_HF_TOKEN``, ``HF_TOKEN``, or what ``hf auth login``
    keeps; None where there is none."""
    for name in (ENV_OWN_TOKEN, ENV_TOKEN):
        if token := environ.get(name, "").strip():
            return token
    home = Path(environ.get("HOME", "/"))
    cache = Path(environ.get("XDG_CACHE_HOME") or home / ".cache")
    folder = Path(environ.get("HF_HOME") or cache / "huggingface")
    path = Path(environ.get("HF_TOKEN_PATH") or folder / "token")
    try:
        with path.open("rb") as file:
            return file.read(_MAX_TOKEN_BYTES).decode("ascii").strip() or None
    except (OSError, ValueError):
        return None


def endpoint(environ: Mapping[str, str]) -> str:
    """The Hub's base URL, without a slash at its end.

    Raises:
        UsageError: it is neither https nor this machine: a token would travel in the clear.
    """
    return require_safe(environ.get(ENV_ENDPOINT) or ENDPOINT, ENV_ENDPOINT, "token")


def namespace(environ: Mapping[str, str]) -> str:
    return environ.get(ENV_NAMESPACE, "").strip()


def image(environ: Mapping[str, str]) -> str:
    return environ.get(ENV_IMAGE, "").strip() or POD_IMAGE


def ssh_key(environ: Mapping[str, str]) -> str:
    """The file of the key for the SSH gateway; '' where ssh chooses."""
    given = environ.get(ENV_SSH_KEY, "").strip()
    return os.path.expanduser(given) if given else ""


def refuse_tokens(values: Mapping[str, str], token: str) -> None:
    """See that none of a job's variables or secrets is a token of the account: with one, a job
    could start jobs.

    Raises:
        NotSupported: one is, or looks like one.
    """
    for name, value in values.items():
        is_named = name in TOKEN_VARIABLES and bool(value)
        if is_named or (token and token in value) or _TOKEN.search(value):
            raise NotSupported(
                f"{name} has a Hugging Face token: with it a job could start other jobs",
                next_step="prepare the data before the launch, or upload with --bucket: both work "
                "without a token on the job",
            )
