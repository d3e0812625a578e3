"""Removal of secrets and personal names from text and JSON that leaves this machine.

What is removed stands in its place as ``[removed: …]``, so that a reader sees that something was
there. Names of fields and variables stay.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any
from urllib.parse import quote, quote_plus

#: Tokens that say by their form what they open; of each the published length.
TOKEN = (
    r"(?<![0-9A-Za-z])("
    r"A(KIA|SIA)[A-Z2-7]{16}"  # AWS: an access key's id, beside which its secret stands
    r"|hf_[A-Za-z]{34}"  # Hugging Face
    r"|rpa_[0-9A-Z]{40,}"  # RunPod
    r"|gh[pousr]_[0-9A-Za-z]{36}|github_pat_[0-9A-Za-z_]{82}"  # GitHub
    r"|glpat-[0-9A-Za-z_-]{20}"  # GitLab
    r"|sk-(proj|ant|svcacct)-[0-9A-Za-z_-]{40,}"  # OpenAI, Anthropic
    r"|xox[abprs]-[0-9A-Za-z-]{20,}"  # Slack
    r"|AIza[0-9A-Za-z_-]{35}"  # Google
    r"|dop_v1_[0-9a-f]{64}"  # DigitalOcean
    r")(?![0-9A-Za-z])"
)
MASK = "[removed: token]"
_TYPED = re.compile(
    TOKEN
    + r"|(?<![0-9A-Za-z_])(?:hf_|rpa_)[0-9A-Za-z]{30,}(?![0-9A-Za-z_-])"
    + r"|(?<![0-9A-Za-z_-])sk-[0-9A-Za-z]{32,}(?![0-9A-Za-z_-])"
    + r"|(?<![0-9A-Za-z_])AKIA[0-9A-Z]{16}(?![0-9A-Za-z_-])"
)
"""A token as it is typed: in an argument, after ``=``, in a line for a shell. Names that begin like
one, have words with dashes, or are shorter, are none."""
_PRIVATE_KEY = re.compile(
    r"-----BEGIN ([A-Z ]{0,40}PRIVATE KEY)-----.*?(-----END \1-----|\Z)", re.DOTALL
)
_SSH_KEY = re.compile(
    r"\b((?:sk-)?(?:ssh-(?:ed25519|rsa|dss)|ecdsa-sha2-[a-z0-9-]+)(?:@openssh\.com)?) "
    r"AAAA[0-9A-Za-z+/=]+(?: [^\s\"',;]+)?"
)
_JWT = re.compile(r"\beyJ[0-9A-Za-z_-]{10,}\.[0-9A-Za-z_-]{10,}\.[0-9A-Za-z_-]{10,}")
_SCHEME = re.compile(r"\b(Bearer|Basic) +[0-9A-Za-z._~+/=-]{8,}", re.IGNORECASE)
_USER_OF_URL = re.compile(r"\b([a-z][a-z0-9+.-]{1,15}://)[^\s/@\"'<>]+@", re.IGNORECASE)
_QUERY = re.compile(r"\b([a-z][a-z0-9+.-]{1,15}://[^\s?\"'<>]+\?)([^\s\"'<>#]+)", re.IGNORECASE)
_LOOSE = re.compile(r"\bhf_[A-Za-z0-9]{16,}|\brpa_[0-9A-Za-z_]{16,}|\bsk-[0-9A-Za-z_-]{20,}")
_MAIL = re.compile(r"\b[\w.+-]+@[\w-]+(?:\.[\w-]+)*\.[A-Za-z]{2,}\b")
_NAMED = re.compile(
    r"(?<![A-Za-z0-9])([A-Za-z0-9_-]*(?:password|passwd|secret|token|api[_-]?key|access[_-]?key"
    r"|private[_-]?key|credential)[A-Za-z0-9_-]*[\"']?\s*[=:]\s*[\"']?)([^\s\"',;&}\[]{4,})",
    re.IGNORECASE,
)
_SECRET_NAME = re.compile(
    r"pass(word|wd|phrase)?$|secret|token|api[_-]?key|private[_-]?key|public[_-]?key|ssh[_-]?key"
    r"|access[_-]?key|credential|auth(orization)?$|cookie|signature|^sig$|session|image[_-]?login"
    r"|webhook|e?mail$|user[_-]?(id|name)$|account[_-]?id$|owner[_-]?id$",
    re.IGNORECASE,
)
_ENVIRONMENTS = frozenset(
    ("env", "envs", "environment", "secrets", "environmentvariables", "env_vars", "extra_env")
)
_EVENT = "data: "
_LONG = 2_000
"""Characters of one string; of a longer one its length and hash stay: a boot archive is 60 kB."""
_LEAST_SECRET = 6
_COMMON = frozenset(("root", "user", "ubuntu", "admin", "runner", "debian", "ec2-user", "jovyan"))
_MOST_DEPTH = 40


def find_token(text: str) -> str:
    """Return the first characters of a token in the text, which say whose it is; empty where there
    is none."""
    found = _TYPED.search(text)
    return found[0][:4] if found is not None else ""


def mask_tokens(text: str) -> str:
    """Return the text with ``MASK`` in the place of each token."""
    return _TYPED.sub(MASK, text)


def masked(value: Any) -> Any:
    """Return JSON with ``MASK`` in the place of each token in its strings."""
    if isinstance(value, str):
        return mask_tokens(value)
    if isinstance(value, Mapping):
        return {name: masked(of) for name, of in value.items()}
    if isinstance(value, (list, tuple)):
        return [masked(each) for each in value]
    return value


def is_secret_name(name: str) -> bool:
    """Whether a field or variable of this name holds what only its owner may see."""
    return _SECRET_NAME.search(name) is not None


def secrets_of(environ: Mapping[str, str]) -> set[str]:
    """The values of the environment's variables that are secret by their names."""
    return {
        value
        for name, value in environ.items()
        if is_secret_name(name) or name.upper().endswith(("_KEY", "_PAT", "_PASS"))
    }


class Redactor:
    """Redacts by known secrets, by the forms of others, and by names of fields.

    ``folders`` are replaced by ``~``, ``names`` (the user's, the machine's) as whole words.
    """

    def __init__(
        self,
        secrets: Iterable[str] = (),
        *,
        folders: Iterable[str] = (),
        names: Iterable[str] = (),
    ) -> None:
        forms: set[str] = set()
        for secret in secrets:
            if len(secret) >= _LEAST_SECRET:
                forms |= _forms(secret)
        # The longest first: one may be a part of another.
        self._secrets = sorted(forms, key=len, reverse=True)
        self._folders = sorted((each for each in folders if len(each) > 1), key=len, reverse=True)
        words = [each for each in names if len(each) > 2 and each.lower() not in _COMMON]
        self._names = (
            re.compile(
                r"(?<![A-Za-z0-9_])(" + "|".join(map(re.escape, words)) + r")(?![A-Za-z0-9_])"
            )
            if words
            else None
        )

    def text(self, text: str) -> str:
        """Return the text without secrets, keys, URLs' parameters, addresses and names."""
        for secret in self._secrets:
            text = text.replace(secret, "[removed: secret]")
        text = _PRIVATE_KEY.sub("[removed: private key]", text)
        text = _SSH_KEY.sub(r"\1 [removed: key]", text)
        text = _USER_OF_URL.sub(r"\1[removed: user]@", text)
        text = _QUERY.sub(lambda found: found[1] + _without_values(found[2]), text)
        text = _JWT.sub(MASK, text)
        text = _SCHEME.sub(rf"\1 {MASK}", text)
        text = mask_tokens(text)
        text = _LOOSE.sub(MASK, text)
        text = _NAMED.sub(r"\1[removed: secret]", text)
        text = _MAIL.sub("[removed: address]", text)
        for folder in self._folders:
            text = text.replace(folder, "~")
        if self._names is not None:
            text = self._names.sub("[removed: name]", text)
        return text

    def json(self, value: Any, name: str = "", depth: int = 0) -> Any:
        """Return the same value with each string redacted, by the name of its field too."""
        if depth > _MOST_DEPTH:
            return "[removed: nested too deep]"
        if isinstance(value, Mapping):
            if name.lower() in _ENVIRONMENTS:
                return {self.text(str(key)): f"[removed: {_kind(of)}]" for key, of in value.items()}
            return {
                self.text(str(key)): self.json(of, str(key), depth + 1) for key, of in value.items()
            }
        if isinstance(value, (list, tuple)):
            if name.lower() in _ENVIRONMENTS:
                return [self._variable(each, depth) for each in value]
            return [self.json(each, name, depth + 1) for each in value]
        if not isinstance(value, str):
            return value
        if value and (is_secret_name(name) or name.lower() in _ENVIRONMENTS):
            return f"[removed: {name[:60]}]"
        if len(value) > _LONG:
            return f"[removed: {len(value)} characters, sha256 {_sha256(value)}]"
        return self._line(value, depth)

    def _variable(self, each: Any, depth: int) -> Any:
        """One variable of an environment that is written as a list."""
        if isinstance(each, Mapping):
            return {
                str(key): of if str(key) in ("key", "name") else f"[removed: {_kind(of)}]"
                for key, of in each.items()
            }
        name, equals, _ = str(each).partition("=")
        return f"{name}=[removed: str]" if equals else "[removed: str]"

    def document(self, content: bytes | str) -> Any:
        """Return an answer's JSON redacted, or its text."""
        text = content.decode("utf-8", "replace") if isinstance(content, bytes) else content
        try:
            return self.json(json.loads(text))
        except (ValueError, RecursionError):
            # A stream of events, or a log whose lines are JSON.
            return self.text("\n".join(self._line(line, 0) for line in text.split("\n")))

    def _line(self, line: str, depth: int) -> str:
        """One string; JSON that stands in it is redacted as JSON is."""
        prefix = _EVENT if line.startswith(_EVENT) else ""
        rest = line[len(prefix) :]
        if rest[:1] in ("{", "["):
            try:
                return prefix + json.dumps(self.json(json.loads(rest), depth=depth + 1))
            except (ValueError, RecursionError):
                pass
        return self.text(line)


def _forms(secret: str) -> set[str]:
    """The secret as it may stand in a URL, in JSON and in base64."""
    raw = secret.encode("utf-8", "surrogateescape")
    return {
        secret,
        quote(raw, safe=""),
        quote_plus(raw),
        json.dumps(secret)[1:-1],
        base64.b64encode(raw).decode().rstrip("="),
        base64.urlsafe_b64encode(raw).decode().rstrip("="),
    }


def _without_values(query: str) -> str:
    """A URL's parameters by their names alone."""
    return "&".join(
        f"{part.partition('=')[0]}=[removed]" if "=" in part else part for part in query.split("&")
    )


def _kind(value: Any) -> str:
    return type(value).__name__


def _sha256(text: str) -> str:
    return sha256(text.encode("utf-8", "replace")).hexdigest()[:16]
