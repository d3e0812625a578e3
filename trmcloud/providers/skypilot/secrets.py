"""Which credential of a cloud SkyPilot 0.14 needs, and what of it lies on a rented machine.

Read from its source: ``get_credential_file_mounts`` of each cloud, and ``check.py``, which adds R2,
CoreWeave, VAST Data and Hugging Face. AWS, GCP and Azure can give a machine an identity of its own
(``remote_identity: SERVICE_ACCOUNT``): no file is copied then.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from trmcloud.core.values import Value
from trmcloud.providers.skypilot.traits import RUNPOD_BY_SKYPILOT

ATTACHED, COPIED, NO_UPLOAD = "SERVICE_ACCOUNT", "LOCAL_CREDENTIALS", "NO_UPLOAD"
ENV_VALID_UNTIL = "TRMCLOUD_SKY_VALID_UNTIL"
"""The user's word for a credential whose end no file tells: a day (2027-01-31), or ``never``."""
KNOWS_IDENTITY = ("aws", "azure", "gcp", "kubernetes", "nebius", "oci", "vast")
"""Clouds, in SkyPilot's words, for which its settings take a ``remote_identity``."""

COMMON_ENV = (
    *("PATH", "LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE", "TERM", "TZ", "TMPDIR"),
    *("USER", "LOGNAME", "SHELL", "SKYPILOT_DISABLE_USAGE_COLLECTION", "SKYPILOT_DEBUG"),
)
REACH_ENV = (
    *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
)
"""The variables for reaching the network: no account's key is in them."""


class WrittenCredential(NamedTuple):
    """A credential file that is written from variables, where the user has no file. ``text`` has
    their values in its braces."""

    path: str
    variables: tuple[str, ...]
    text: str


class CloudFiles(Value):
    """One cloud's credential. ``links`` are files and folders below the user's home; with
    ``first_of`` only the first that is there counts; ``environment`` are variables that its tools
    read."""

    links: tuple[str, ...]
    environment: tuple[str, ...] = ()
    made: WrittenCredential | None = None
    first_of: tuple[str, ...] = ()
    identity: str = COPIED
    whose: str = ""
    """The account that it opens, where it is copied to the machine."""
    identity_is: str = ""
    """The identity that a machine has instead, where it has one of its own."""


FILES: Mapping[str, CloudFiles] = {
    "aws": CloudFiles(
        (".aws",),
        (
            *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"),
            *("AWS_DEFAULT_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_CONFIG_FILE"),
            *("AWS_SHARED_CREDENTIALS_FILE", "AWS_CA_BUNDLE", "AWS_ROLE_ARN"),
            *("AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_ENDPOINT_URL"),
        ),
        identity=ATTACHED,
        whose="the AWS user's keys: all that they permit",
        identity_is="the IAM role that SkyPilot attaches: EC2 and S3 of the account",
    ),
    "azure": CloudFiles(
        (".azure",),
        (
            *("AZURE_CLIENT_ID", "AZURE_CLIENT_SECRET", "AZURE_TENANT_ID"),
            *("AZURE_SUBSCRIPTION_ID",),
        ),
        identity=ATTACHED,
        whose="the Azure login's token cache: all that the user may do",
        identity_is="a managed identity: the cluster's resource group",
    ),
    "gcp": CloudFiles(
        (".config/gcloud",),
        (
            *("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_CLOUD_PROJECT", "CLOUDSDK_CONFIG"),
            *("CLOUDSDK_CORE_PROJECT", "CLOUDSDK_ACTIVE_CONFIG_NAME"),
        ),
        identity=ATTACHED,
        whose="the gcloud login: all that the user may do",
        identity_is="SkyPilot's service account in the project: its machines and buckets",
    ),
    "lambda": CloudFiles(
        (".lambda_cloud/lambda_keys",),
        made=WrittenCredential(".lambda_cloud/lambda_keys", ("LAMBDA_API_KEY",), "api_key = {}\n"),
        whose="the Lambda account's API key: every machine of the account",
    ),
    "nebius": CloudFiles(
        (".nebius/NEBIUS_TENANT_ID.txt", ".nebius/NEBIUS_DOMAIN.txt"),
        first_of=(".nebius/credentials.json", ".nebius/NEBIUS_IAM_TOKEN.txt"),
        whose="the Nebius service account's key: what its groups may do",
    ),
    "digitalocean": CloudFiles(
        (".config/doctl/config.yaml", "Library/Application Support/doctl/config.yaml"),
        made=WrittenCredential(
            ".config/doctl/config.yaml", ("DIGITALOCEAN_ACCESS_TOKEN",), "access-token: {}\n"
        ),
        whose="doctl's tokens: every account that doctl is logged in to",
    ),
    RUNPOD_BY_SKYPILOT: CloudFiles(
        (".runpod/config.toml",),
        ("RUNPOD_API_BASE_URL",),
        WrittenCredential(
            ".runpod/config.toml", ("RUNPOD_API_KEY",), '[default]\napi_key = "{}"\n'
        ),
        whose="the RunPod account's API key: every pod and volume of the account",
    ),
    "vast-ai": CloudFiles(
        (".config/vastai/vast_api_key",),
        made=WrittenCredential(".config/vastai/vast_api_key", ("VAST_API_KEY",), "{}\n"),
        whose="the vast.ai account's API key: every machine of the account, and it is on a "
        "private person's computer",
    ),
    "verda": CloudFiles(
        (".verda/config.json",),
        made=WrittenCredential(
            ".verda/config.json",
            ("VERDA_CLIENT_ID", "VERDA_CLIENT_SECRET"),
            '{{"client_id": "{}", "client_secret": "{}",'
            ' "base_url": "https://api.verda.com/v1", "default_region": "FIN-03"}}\n',
        ),
        whose="the Verda account's client secret: every machine of the account",
    ),
}
"""By our names of the providers."""

NEVER = (
    *(".aws", ".azure", ".config/gcloud", ".lambda_cloud", ".nebius", ".runpod", ".verda"),
    *(".config/doctl", "Library/Application Support/doctl", ".config/vastai", ".vast_api_key"),
    *(".cloudflare", ".coreweave", ".vastdata", ".cache/huggingface", ".huggingface"),
    *(".sky/huggingface", ".kube", ".oci", ".bluemix", ".ibm", ".netrc", ".git-credentials"),
    *(".config/gh", ".config/git", ".config/wandb", ".docker", ".fluidstack", ".paperspace"),
    *(".cudo", ".hyperbolic", ".prime", ".shadeform", ".scp", ".seeweb", ".vsphere", ".yotta"),
    *(".slurm", ".mithril", ".config/cudo"),
)
"""The places of credentials: none of them is in a home but the one of its own cloud."""


class MachineCredential(Value):
    """An account's credential on a machine. ``until`` is epoch seconds: infinite where it holds
    until somebody revokes it, None where nothing tells."""

    what: str
    until: float | None
    why: str

    @property
    def words(self) -> str:
        return f"{self.what} · {self.why}"

    def outlives(self, at: float) -> bool:
        return self.until is not None and self.until > at


def is_there(provider: str, home: Path, environ: Mapping[str, str]) -> bool:
    """Whether the user has a credential of the cloud, in its tools' files or in variables."""
    files = FILES[provider]
    # What says whose account it is opens nothing by itself.
    candidates = files.first_of or files.links
    if any((home / path).exists() for path in candidates):
        return True
    if files.made is not None and all(environ.get(name) for name in files.made.variables):
        return True
    keys = ("AWS_ACCESS_KEY_ID", "GOOGLE_APPLICATION_CREDENTIALS", "AZURE_CLIENT_SECRET")
    return any(environ.get(name) for name in files.environment if name in keys)


def on_machine(
    provider: str, home: Path, identity: str, environ: Mapping[str, str]
) -> MachineCredential:
    """``home``: the one in which ``sky`` runs; ``identity``: SkyPilot's ``remote_identity``."""
    files = FILES[provider]
    if provider == "aws" and identity == NO_UPLOAD:
        identity = ATTACHED  # the role is attached all the same
    if identity == NO_UPLOAD:
        return MachineCredential(
            "no credential", 0.0, "without one SkyPilot's autodown does not work"
        )
    if identity != COPIED:
        what = files.identity_is if identity == ATTACHED else f"the identity {identity}"
        return MachineCredential(
            f"no file; {what}", math.inf, "valid for as long as the machine has it"
        )
    until, why = _validity(provider, home, environ)
    if until is None:
        until, why = _by_word(environ) or (until, why)
    return MachineCredential(files.whose, until, why)


def _validity(provider: str, home: Path, environ: Mapping[str, str]) -> tuple[float | None, str]:
    forever = math.inf, "valid until you revoke it"
    if provider == "aws":
        if environ.get("AWS_SESSION_TOKEN") or _has_session(home / ".aws" / "credentials"):
            return None, "a temporary session: its end is not known here"
        return forever
    if provider == "gcp":
        named = environ.get("GOOGLE_APPLICATION_CREDENTIALS", "")
        default = home / ".config" / "gcloud" / "application_default_credentials.json"
        path = Path(named) if named else default
        if _kind(path) == "service_account":
            return forever
        return None, "a user's login, which the organization may end at any time"
    if provider == "azure":
        return None, "az's token cache: its end is not known here"
    if provider == "nebius" and not (home / ".nebius" / "credentials.json").exists():
        return None, "an IAM token, valid for at most 12 hours: the rest is not known here"
    if provider == "digitalocean":
        return None, "DigitalOcean's tokens may expire; the file does not show when"
    return forever


def _by_word(environ: Mapping[str, str]) -> tuple[float, str] | None:
    said = environ.get(ENV_VALID_UNTIL, "").strip()
    if said == "never":
        return math.inf, f"you declared that it does not expire ({ENV_VALID_UNTIL})"
    try:
        day = time.strptime(said, "%Y-%m-%d")
    except ValueError:
        return None
    return time.mktime(day), f"you declared that it is valid until {said} ({ENV_VALID_UNTIL})"


def _kind(path: Path) -> str:
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return ""
    return str(told.get("type", "")) if isinstance(told, dict) else ""


def _has_session(path: Path) -> bool:
    import configparser  # 2 ms of every command's start

    reader = configparser.RawConfigParser(strict=False)
    try:
        reader.read(path, encoding="utf-8")
    except (configparser.Error, UnicodeDecodeError, OSError):
        return True
    sections: Sequence[str] = reader.sections()
    return any(reader.has_option(section, "aws_session_token") for section in sections)
