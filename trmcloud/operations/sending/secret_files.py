"""Files that look like keys or secrets: by their names, or by a token or private key in them."""

from __future__ import annotations

import functools
import re
from fnmatch import translate
from pathlib import Path

from trmcloud.io.redaction import TOKEN

_NAMES = (
    ".env", ".env.*", "*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "*.kdbx", "*.asc", "id_rsa*",
    "id_dsa*", "id_ecdsa*", "id_ed25519*", ".netrc", "_netrc", ".pypirc", ".npmrc",
    ".git-credentials", "kaggle.json", "credentials", "credentials.json", "client_secret*.json",
    "service_account*.json", ".htpasswd", "*.ovpn", "known_hosts", "*.env", "*.env.*", "*.tfvars",
    "*.tfvars.json", "*.tfstate", "*.tfstate.*", "*.keystore", "*.ppk", "*.agekey", "*.kubeconfig",
    ".dockerconfigjson", ".pgpass", ".my.cnf", ".boto", ".s3cfg", "rclone.conf", ".vault-token",
    "wallet.dat",
)  # fmt: skip
#: Names of such files whatever their suffix, unless that is a program's.
_SECRET_STEM = re.compile(
    r"((.*[._-])?(secrets?|credentials?|passwords?|passwd|api[_-]?keys?|auth[_-]?tokens?"
    r"|access[_-]?tokens?)([._-].*)?|tokens?|aws|gcp[_-]?key|kubeconfig)"
)
_DATA_SUFFIXES = frozenset(
    ("", ".toml", ".yaml", ".yml", ".json", ".ini", ".cfg", ".conf", ".txt", ".csv", ".properties",
     ".xml", ".sh", ".env", ".bak", ".old")
)  # fmt: skip
KEY_FOLDERS = frozenset((".ssh", ".aws", ".gnupg", ".runpod", ".kube", ".azure", ".sky", ".git"))
_PUBLIC = (
    "*.pub", "*.env.example", "*.env.sample", "*.env.template", "*.tfvars.example", "tokens.txt",
    "tokens.json", "tokens.csv",
)  # fmt: skip
_PRIVATE_KEY = re.compile(rb"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----")
_TOKEN = re.compile(TOKEN.encode())
_LOOKED_AT_BYTES = 4096
_SEARCHED_BYTES = 1 << 16
_TEXT_SUFFIXES = _DATA_SUFFIXES | {".py", ".md", ".ipynb", ".js", ".ts", ".env", ".hcl", ".tf"}


def looks_like_key(path: Path, name: str) -> bool:
    """Whether the file ``path``, of the relative name ``name``, looks like a key. Its first 64 KiB
    are read where its suffix is that of a text."""
    parts = name.split("/")
    base = parts[-1].lower()
    if any(part in KEY_FOLDERS for part in parts[:-1]):
        return True
    if _any_of(_PUBLIC).match(base):
        return False
    if _any_of(_NAMES).match(base):
        return True
    stem, dot, suffix = base.rpartition(".")
    stem, suffix = (stem, dot + suffix) if stem else (base, "")
    if suffix in _DATA_SUFFIXES and (_SECRET_STEM.fullmatch(stem)):
        return True
    if suffix in _TEXT_SUFFIXES:
        try:
            with open(path, "rb") as file:
                begin = file.read(_SEARCHED_BYTES)
        except OSError:
            return False
        head = begin[:_LOOKED_AT_BYTES]
        is_private = head.lstrip().startswith(b"-----BEGIN") and bool(_PRIVATE_KEY.search(head))
        return is_private or bool(_TOKEN.search(begin))
    return False


@functools.cache
def _any_of(patterns: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(map(translate, patterns)))
