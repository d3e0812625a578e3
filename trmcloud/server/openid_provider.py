"""An OpenID Connect provider as its client sees it: addresses, keys, and checked ID tokens.

Of OpenID Connect Core 1.0 this is the authorization code flow (section 3.1), with PKCE (RFC 7636)
and the checks of ID tokens of section 3.1.3.7. Signatures and claims are checked by joserfc.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from trmcloud.core.errors import AuthError, LinkError, UsageError
from trmcloud.core.text import one_line
from trmcloud.io.requests import send

SIGNED_BY = (
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512",
)  # fmt: skip
"""Signatures by a key of the provider alone. ``none``, and those by a secret that the client has,
too, are no proof."""
CLOCKS_APART_S = 120
"""So much may the provider's clock differ from the server's."""
_ADDRESSES_FOR_S = 3600.0
_KEYS_AGAIN_AFTER_S = 30.0
"""Keys are asked for again, where a token's is not among them, no sooner than this."""
_ANSWER_WITHIN_S = 20.0
_MOST_BYTES = 1 << 20
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_TRY_AGAIN = "log in again; if it stays, ask an administrator of the server"

Fetch = Callable[[urllib.request.Request], bytes]


def fetch(request: urllib.request.Request) -> bytes:
    """The body of an answer of 2xx; no redirect is followed.

    Raises:
        urllib.error.HTTPError, OSError: there was none.
    """
    with closing(send(request, _ANSWER_WITHIN_S)) as answer:
        return answer.read(_MOST_BYTES)


@dataclass(frozen=True)
class Identity:
    """An account of the provider. ``subject`` is what never changes of it."""

    issuer: str
    subject: str
    email: str
    groups: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Client:
    """This server, as the provider knows it. An empty ``secret``: a public client."""

    issuer: str
    id: str
    secret: str
    redirect_uri: str
    groups_claim: str = "groups"


class OpenIdProvider:
    """``now`` returns epoch seconds."""

    def __init__(self, client: Client, now: Callable[[], float], fetch: Fetch = fetch) -> None:
        require_safe(client.issuer, "--oidc")
        self.client, self._now, self._fetch = client, now, fetch
        self._lock = threading.Lock()
        self._addresses: Mapping[str, Any] = {}
        self._addresses_at = self._keys_at = float("-inf")
        self._keys: Any = None

    def authorization_url(self, state: str, nonce: str, verifier: str) -> str:
        """The address at which a person logs in.

        Raises:
            LinkError: the provider does not answer.
        """
        challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest())
        asked = {
            "response_type": "code",
            "client_id": self.client.id,
            "redirect_uri": self.client.redirect_uri,
            "scope": self._scope(),
            "state": state,
            "nonce": nonce,
            "code_challenge": challenge.decode().rstrip("="),
            "code_challenge_method": "S256",
        }
        at = self._address("authorization_endpoint")
        return f"{at}{'&' if '?' in at else '?'}{urlencode(asked)}"

    def redeem(self, code: str, verifier: str, nonce: str) -> Identity:
        """Whose account it is that came back with ``code``.

        Raises:
            AuthError: the provider refuses the code, or its ID token proves nothing.
            LinkError: the provider does not answer.
        """
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self.client.redirect_uri,
            "code_verifier": verifier,
        }
        told = self._ask_token(form)
        token, access = told.get("id_token"), told.get("access_token")
        if not isinstance(token, str):
            raise AuthError("the identity provider sent no ID token", next_step=_TRY_AGAIN)
        claims = self.check(token, nonce)
        if "email" not in claims and isinstance(access, str):
            claims = {**self._user_info(access, str(claims["sub"])), **claims}
        return self._identity(claims)

    def check(self, token: str, nonce: str) -> Mapping[str, Any]:
        """The claims of an ID token, once signature, issuer, audience, times and nonce are right.

        Raises:
            AuthError: one of them is not. LinkError: the provider does not answer.
        """
        from joserfc.errors import JoseError
        from joserfc.jwt import JWTClaimsRegistry

        try:
            claims = dict(self._decoded(token).claims)
            JWTClaimsRegistry(
                now=int(self._now()),
                leeway=CLOCKS_APART_S,
                iss={"essential": True, "value": self.client.issuer},
                aud={"essential": True, "value": self.client.id},
                exp={"essential": True},
                iat={"essential": True},
                sub={"essential": True},
                nonce={"essential": True},
            ).validate(claims)
        except JoseError as error:
            raise _refused(error) from None
        except (ValueError, TypeError, KeyError) as error:
            raise _refused(error) from None
        several = isinstance(claims["aud"], list) and len(claims["aud"]) > 1
        if claims.get("azp", None if several else self.client.id) != self.client.id:
            raise AuthError("the ID token is for another client", next_step=_TRY_AGAIN)
        given = claims["nonce"]
        if not isinstance(given, str) or not hmac.compare_digest(given.encode(), nonce.encode()):
            raise AuthError("the ID token is of another login", next_step=_TRY_AGAIN)
        return claims

    # -- own ---------------------------------------------------------------------------------------

    def _decoded(self, token: str) -> Any:
        from joserfc import jwt
        from joserfc.errors import BadSignatureError, InvalidKeyIdError

        said = self._known().get("id_token_signing_alg_values_supported", ["RS256"])
        by = [name for name in SIGNED_BY if name in said]
        try:
            return jwt.decode(token, self._key_set(), algorithms=by)
        except (BadSignatureError, InvalidKeyIdError):
            with self._lock:
                if self._now() - self._keys_at < _KEYS_AGAIN_AFTER_S:
                    raise
                self._keys = None  # the provider may sign by another key since
        return jwt.decode(token, self._key_set(), algorithms=by)

    def _key_set(self) -> Any:
        from joserfc.errors import JoseError
        from joserfc.jwk import KeySet

        with self._lock:
            if self._keys is not None:
                return self._keys
        told = self._json(urllib.request.Request(self._address("jwks_uri")), "keys")
        try:
            made = KeySet.import_key_set(told)  # type: ignore[arg-type]
        except (JoseError, ValueError, TypeError, KeyError):
            raise LinkError("the identity provider's keys cannot be read") from None
        with self._lock:
            self._keys, self._keys_at = made, self._now()
        return made

    def _known(self) -> Mapping[str, Any]:
        """What the provider says of itself (OpenID Connect Discovery 1.0)."""
        with self._lock:
            if self._addresses and self._now() - self._addresses_at < _ADDRESSES_FOR_S:
                return self._addresses
        at = f"{self.client.issuer.rstrip('/')}/.well-known/openid-configuration"
        told = self._json(urllib.request.Request(at), "configuration")
        if told.get("issuer") != self.client.issuer:
            raise LinkError(
                f"{self.client.issuer} says that its issuer is "
                f"{one_line(str(told.get('issuer')))[:120]}",
                next_step="--oidc with the issuer exactly as the provider writes it",
            )
        with self._lock:
            self._addresses, self._addresses_at = told, self._now()
        return told

    def _address(self, name: str) -> str:
        found = self._known().get(name)
        if not isinstance(found, str):
            raise LinkError(f"the identity provider names no {name}")
        if urlsplit(found).scheme != "https" and not _is_loopback(self.client.issuer):
            raise LinkError(f"the identity provider's {name} is not at https")
        return found

    def _scope(self) -> str:
        known = self._known().get("scopes_supported")
        more = isinstance(known, list) and self.client.groups_claim in known
        return " ".join(("openid", "email", *((self.client.groups_claim,) if more else ())))

    def _ask_token(self, form: Mapping[str, str]) -> Mapping[str, Any]:
        client, form = self.client, dict(form)
        ways = self._known().get("token_endpoint_auth_methods_supported", ["client_secret_basic"])
        header = ""
        if client.secret and "client_secret_basic" in ways:
            pair = f"{quote(client.id, safe='')}:{quote(client.secret, safe='')}"
            header = f"Basic {base64.b64encode(pair.encode()).decode()}"
        else:
            form |= {"client_id": client.id}
            form |= {"client_secret": client.secret} if client.secret else {}
        request = urllib.request.Request(
            self._address("token_endpoint"), data=urlencode(form).encode(), method="POST"
        )
        request.add_header("Content-Type", "application/x-www-form-urlencoded")
        if header:
            request.add_header("Authorization", header)
        return self._json(request, "token", is_of_login=True)

    def _user_info(self, access: str, subject: str) -> Mapping[str, Any]:
        if "userinfo_endpoint" not in self._known():
            return {}
        request = urllib.request.Request(self._address("userinfo_endpoint"))
        request.add_header("Authorization", f"Bearer {access}")
        told = self._json(request, "account", is_of_login=True)
        if told.get("sub") != subject:
            raise AuthError("the account is not that of the ID token", next_step=_TRY_AGAIN)
        return told

    def _identity(self, claims: Mapping[str, Any]) -> Identity:
        email, subject = claims.get("email"), claims["sub"]
        if not isinstance(email, str) or not email or not subject:
            raise AuthError(
                "the identity provider names no email address",
                next_step="let it send the claim email to this client",
            )
        if claims.get("email_verified") not in (True, "true"):
            raise AuthError(
                "the identity provider has not verified the email address",
                next_step="verify it there, then log in again",
            )
        groups = claims.get(self.client.groups_claim)
        named = groups if isinstance(groups, list) else []
        return Identity(
            self.client.issuer,
            str(subject),
            email.lower(),
            frozenset(each for each in named if isinstance(each, str)),
        )

    def _json(
        self, request: urllib.request.Request, what: str, *, is_of_login: bool = False
    ) -> Mapping[str, Any]:
        request.add_header("Accept", "application/json")
        try:
            told = json.loads(self._fetch(request))
        except urllib.error.HTTPError as error:
            with closing(error):
                why = _why(error)
            if is_of_login and error.code in (400, 401, 403):
                raise AuthError(
                    f"the identity provider refuses the login: {why}", next_step=_TRY_AGAIN
                ) from None
            raise LinkError(f"the identity provider answered {error.code} for its {what}") from None
        except (OSError, HTTPException):
            raise LinkError(
                f"no answer from the identity provider {self.client.issuer}",
                next_step="log in by name and password, or try again later",
            ) from None
        except (ValueError, RecursionError):
            told = None
        if not isinstance(told, dict):
            raise LinkError(f"the identity provider's {what} is no JSON object")
        return told


def require_safe(url: str, flag: str) -> str:
    """
    Raises:
        UsageError: it is no address, or one to which secrets would be sent unencrypted.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise UsageError(
            f"{flag} {url[:80]!r} is no address", next_step=f"{flag} https://login.example.com"
        )
    if parts.scheme == "http" and not _is_loopback(url):
        raise UsageError(
            f"{flag}: secrets are sent only over https", next_step=f"{flag} https://{parts.netloc}"
        )
    return url


def _is_loopback(url: str) -> bool:
    return urlsplit(url).hostname in _LOOPBACK


def _refused(error: Exception) -> AuthError:
    from joserfc.errors import ExpiredTokenError

    if isinstance(error, ExpiredTokenError):
        return AuthError(
            "the ID token has expired", next_step="compare the clocks of server and provider"
        )
    why = one_line(str(error))[:120]
    return AuthError(f"the ID token proves nothing: {why}", next_step=_TRY_AGAIN)


def _why(error: urllib.error.HTTPError) -> str:
    """The ``error`` of an OAuth 2.0 answer; its free text may say anything, and is left out."""
    try:
        told = json.loads(error.read(1 << 14))
        return one_line(str(told["error"]))[:60]
    except (OSError, HTTPException, ValueError, KeyError, TypeError):
        return str(error.code)
