"""Logging in at an identity provider, whose answers are forged in each way that would let the wrong
person in. The provider is made of joserfc; an independent one is in ``tests/e2e/test_oidc.py``."""

from __future__ import annotations

import base64
import hashlib
import hmac
import io
import json
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from joserfc import jwt
from joserfc.jwk import ECKey, RSAKey
from starlette.testclient import TestClient

from trmcloud.adapters.ledger.team import StoredTeam, file_store
from trmcloud.core.errors import LinkError, UsageError
from trmcloud.io.web_guard import AllowedHosts
from trmcloud.ports.team import Role
from trmcloud.server.app import Doors, Settings, TeamServer
from trmcloud.server.openid_login import FLOW_S, MOST_BEGUN, LoginRules, OpenIdLogin
from trmcloud.server.openid_provider import Client, OpenIdProvider, require_safe
from trmcloud.server.people import People
from trmcloud.server.running import CommandRunner

AT = 1_800_000_000.0
ISSUER = "https://login.example.com"
SECRET = "the client's own secret, of more than 32 bytes"
HERE = "https://trmcloud.example.com"
OIDC = "/api/v1/oidc"
KEY = RSAKey.generate_key(2048, {"kid": "one"}, auto_kid=False)
OTHER = ECKey.generate_key("P-256", {"kid": "two"}, auto_kid=False)


class Now:
    def __init__(self) -> None:
        self.at = AT

    def __call__(self) -> float:
        return self.at


@dataclass
class Issuer:
    """An identity provider: ``forge`` changes the claims of its next ID token, ``sign`` how they
    are signed."""

    now: Now
    email: str = "ada@example.com"
    subject: str = "0001"
    groups: tuple[str, ...] = ()
    keys: tuple[Any, ...] = (KEY,)
    forge: Callable[[dict[str, Any]], Any] = lambda claims: None
    sign: Callable[[dict[str, Any]], str] | None = None
    codes: dict[str, dict[str, str]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    is_down: bool = False
    says: dict[str, Any] = field(default_factory=dict)

    def authorize(self, url: str) -> dict[str, str]:
        """What the browser is sent back with."""
        asked = {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}
        assert url.startswith(f"{ISSUER}/auth?")
        assert asked["response_type"] == "code"
        assert asked["code_challenge_method"] == "S256"
        assert "openid" in asked["scope"].split()
        assert asked["redirect_uri"] == f"{HERE}{OIDC}/callback"
        code = f"code-{len(self.codes)}"
        self.codes[code] = asked
        return {"code": code, "state": asked["state"], "iss": ISSUER}

    def fetch(self, request: urllib.request.Request) -> bytes:
        path = urlsplit(request.full_url).path
        self.asked.append(path)
        if self.is_down:
            raise ConnectionRefusedError
        if path == "/.well-known/openid-configuration":
            return json.dumps(self._described()).encode()
        if path == "/keys":
            public = [key.as_dict(private=False) for key in self.keys]
            return json.dumps({"keys": public}).encode()
        assert path == "/token", path
        return self._redeem(request)

    def _described(self) -> dict[str, Any]:
        return {
            "issuer": ISSUER,
            "authorization_endpoint": f"{ISSUER}/auth",
            "token_endpoint": f"{ISSUER}/token",
            "jwks_uri": f"{ISSUER}/keys",
            "id_token_signing_alg_values_supported": ["RS256", "ES256", "HS256", "none"],
            **self.says,
        }

    def _redeem(self, request: urllib.request.Request) -> bytes:
        assert isinstance(request.data, bytes)
        form = {name: values[0] for name, values in parse_qs(request.data.decode()).items()}
        asked = self.codes.pop(form["code"], None)
        digest = hashlib.sha256(form["code_verifier"].encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).decode().rstrip("=")
        if asked is None or challenge != asked["code_challenge"]:
            body = io.BytesIO(b'{"error": "invalid_grant"}')
            raise urllib.error.HTTPError(request.full_url, 400, "no", {}, body)  # type: ignore[arg-type]
        pair = base64.b64decode(request.headers["Authorization"].removeprefix("Basic ")).decode()
        assert pair.partition(":")[0] == "trmcloud"
        claims = {
            "iss": ISSUER, "sub": self.subject, "aud": "trmcloud", "nonce": asked["nonce"],
            "iat": int(self.now()), "exp": int(self.now()) + 300, "email": self.email,
            "email_verified": True, "groups": list(self.groups),
        }  # fmt: skip
        self.forge(claims)
        token = self.sign(claims) if self.sign else signed(claims, self.keys[0])
        return json.dumps({"access_token": "x", "id_token": token}).encode()


def signed(claims: dict[str, Any], key: Any) -> str:
    by = "RS256" if key.key_type == "RSA" else "ES256"
    return jwt.encode({"alg": by, "kid": key.kid}, claims, key, algorithms=[by])


def by_hand(claims: dict[str, Any], secret: bytes = b"") -> str:
    """Signed by a secret, or not at all: in ways that joserfc would not do."""
    header = {"alg": "HS256" if secret else "none", "kid": "one"}
    parts = [json.dumps(part).encode() for part in (header, claims)]
    said = ".".join(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts)
    proof = hmac.digest(secret, said.encode(), "sha256") if secret else b""
    return f"{said}.{base64.urlsafe_b64encode(proof).decode().rstrip('=')}"


@asynccontextmanager
async def no_lifespan(app: Any) -> AsyncIterator[None]:
    yield


class Team:
    """Servers that share people, each with an identity provider."""

    def __init__(self, folder: Path, rules: LoginRules) -> None:
        self.now, self.folder = Now(), folder
        self.issuer = Issuer(self.now)
        self.rules = rules
        self.people = People(StoredTeam(file_store(folder / "team.db")), self.now)
        self.count = 0

    def server(self) -> TestClient:
        """Another server of the same people; a browser that it answers."""
        self.count += 1
        people = People(StoredTeam(file_store(self.folder / "team.db")), self.now)
        client = Client(ISSUER, "trmcloud", SECRET, f"{HERE}{OIDC}/callback")
        provider = OpenIdProvider(client, self.now, self.issuer.fetch)
        doors = Doors(
            parse=lambda words: None,  # type: ignore[arg-type, return-value]
            runs=lambda: (),
            page=_page,
            spending=lambda visitor, month, by: {},
            mcp=None,
            code_of=lambda error: "error",
        )
        runner = CommandRunner(self.folder / f"run-{self.count}", {}, self.now)
        settings = Settings(AllowedHosts(frozenset({"trmcloud.example.com"})))
        login = OpenIdLogin(people, provider, self.rules, HERE)
        app = TeamServer(people, runner, settings, doors, no_lifespan, login)
        return TestClient(app, base_url=HERE, follow_redirects=False)

    def log_in(self, browser: TestClient, device: str = "") -> Any:
        begun = browser.get(f"{OIDC}/start", params={"device": device} if device else {})
        assert begun.status_code == 302, begun.text
        back = self.issuer.authorize(begun.headers["location"])
        headers = {"Sec-Fetch-Site": "cross-site"}
        return browser.get(f"{OIDC}/callback", params=back, headers=headers)


async def _page(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"the page"})


@pytest.fixture
def team(tmp_path: Path) -> Team:
    made = Team(tmp_path, LoginRules(frozenset({"example.com"})))
    made.people.add("ada@example.com", Role.LEAD)
    return made


PAGE = {"Sec-Fetch-Site": "same-origin"}
"""What browsers add to what a page of the server asks."""


def me(browser: TestClient, token: str = "") -> Any:
    headers = {"Authorization": f"Bearer {token}"} if token else PAGE
    return browser.get("/api/v1/me", headers=headers)


def test_a_browser_gets_a_session_in_a_cookie_of_its_own(team: Team) -> None:
    browser = team.server()
    back = team.log_in(browser)
    assert back.status_code == 200, back.text
    (cookie,) = [c for c in back.headers.get_list("set-cookie") if c.startswith("trmcloud_session")]
    assert {"HttpOnly", "Secure", "SameSite=strict", "Path=/"} <= set(cookie.split("; "))
    assert me(browser).json() == {"person": "ada@example.com", "role": "lead", "projects": []}
    for site in ("", "none", "same-site", "cross-site"):
        asked = browser.get("/api/v1/me", headers={"Sec-Fetch-Site": site} if site else {})
        assert asked.status_code in (401, 403), f"{site!r} is no proof of a page"
    # Logged out, it is worth nothing at any server.
    kept = browser.cookies.get("trmcloud_session")
    assert browser.get("/api/runs", headers=PAGE).text == "the page"
    assert browser.delete("/api/v1/me/token", headers=PAGE).json() == {"revoked": True}
    assert browser.cookies.get("trmcloud_session") is None
    assert me(team.server(), str(kept)).status_code == 401
    decisions = [(each.act.what, each.act.decision) for each in team.people.team.acts()]
    assert ("login at the identity provider", "allowed") in decisions


FORGED: dict[str, Callable[[Issuer], Any]] = {
    "another nonce": lambda i: setattr(i, "forge", lambda c: c.update(nonce="n" * 43)),
    "no nonce": lambda i: setattr(i, "forge", lambda c: c.pop("nonce")),
    "another audience": lambda i: setattr(i, "forge", lambda c: c.update(aud="wiki")),
    "several audiences": lambda i: setattr(
        i, "forge", lambda c: c.update(aud=["wiki", "trmcloud"])
    ),
    "another's azp": lambda i: setattr(i, "forge", lambda c: c.update(azp="wiki")),
    "another issuer": lambda i: setattr(
        i, "forge", lambda c: c.update(iss="https://login.example.com.evil.org")
    ),
    "expired": lambda i: setattr(i, "forge", lambda c: c.update(exp=int(AT) - 121)),
    "without an end": lambda i: setattr(i, "forge", lambda c: c.pop("exp")),
    "of the future": lambda i: setattr(i, "forge", lambda c: c.update(iat=int(AT) + 121)),
    "not yet valid": lambda i: setattr(i, "forge", lambda c: c.update(nbf=int(AT) + 121)),
    "no subject": lambda i: setattr(i, "forge", lambda c: c.pop("sub")),
    "no address": lambda i: setattr(i, "forge", lambda c: c.pop("email")),
    "an address that nobody verified": lambda i: setattr(
        i, "forge", lambda c: c.update(email_verified=False)
    ),
    "an address of another domain": lambda i: setattr(i, "email", "eve@example.com.evil.org"),
    "an address that is no name": lambda i: setattr(i, "email", "../../x@example.com"),
    "unsigned": lambda i: setattr(i, "sign", by_hand),
    "signed by the client's secret": lambda i: setattr(
        i, "sign", lambda c: by_hand(c, SECRET.encode())
    ),
    "signed by the public key as a secret": lambda i: setattr(
        i, "sign", lambda c: by_hand(c, KEY.as_pem(private=False))
    ),
    "signed by another key": lambda i: setattr(i, "sign", lambda c: signed(c, OTHER)),
    "signed by another key of that name": lambda i: setattr(
        i,
        "sign",
        lambda c: signed(c, RSAKey.generate_key(2048, {"kid": "one"}, auto_kid=False)),
    ),
    "no token at all": lambda i: setattr(i, "sign", lambda c: "x"),
    "claims that are no object": lambda i: setattr(
        i, "sign", lambda c: signed(c, KEY).replace(".", "..", 1)
    ),
}


@pytest.mark.parametrize("how", FORGED)
def test_an_id_token_that_proves_nothing_lets_nobody_in(team: Team, how: str) -> None:
    browser = team.server()
    FORGED[how](team.issuer)
    back = team.log_in(browser)
    assert back.status_code == 401, back.text
    assert "Not logged in" in back.text
    assert not [c for c in back.headers.get_list("set-cookie") if "trmcloud_session=" in c]
    assert me(browser).status_code == 401
    assert not team.people.team.tokens()
    assert [each.name for each in team.people.team.people()] == ["ada@example.com"]


def test_clocks_a_minute_apart_do_not_matter(team: Team) -> None:
    for apart_s in (-119, 119):
        told = {"iat": int(AT) + apart_s, "exp": int(AT) + apart_s + 1}
        team.issuer.forge = partial(dict.update, **told)
        assert team.log_in(team.server()).status_code == 200, apart_s


def test_a_key_that_was_rotated_is_fetched_and_a_forged_one_not_asked_for_again(team: Team) -> None:
    browser = team.server()
    assert team.log_in(browser).status_code == 200
    team.issuer.keys = (OTHER, KEY)
    team.now.at += 31
    assert team.log_in(browser).status_code == 200, "signed by the new one"
    team.issuer.keys = (OTHER,)
    team.issuer.sign = lambda claims: signed(claims, KEY)
    team.now.at += 31
    assert team.log_in(browser).status_code == 200, "keys stay until one is missing"
    stranger = ECKey.generate_key("P-256", {"kid": "three"}, auto_kid=False)
    team.issuer.sign = lambda claims: signed(claims, stranger)
    before = team.issuer.asked.count("/keys")
    for _ in range(5):
        assert team.log_in(browser).status_code == 401
    assert team.issuer.asked.count("/keys") == before + 1
    team.issuer.sign = lambda claims: signed(claims, KEY)
    assert team.log_in(browser).status_code == 401, "its key was withdrawn"


def test_a_login_is_used_once_in_its_own_browser_and_in_time(team: Team) -> None:
    browser, other = team.server(), team.server()

    def begin(at: TestClient) -> dict[str, str]:
        return team.issuer.authorize(at.get(f"{OIDC}/start").headers["location"])

    back = begin(browser)
    assert other.get(f"{OIDC}/callback", params=back).status_code == 401, "another browser"
    assert browser.get(f"{OIDC}/callback", params=back).status_code == 401, "and it is used up"
    back = begin(browser)
    assert browser.get(f"{OIDC}/callback", params=back).status_code == 200
    assert browser.get(f"{OIDC}/callback", params=back).status_code == 401
    late = begin(browser)
    team.now.at += FLOW_S
    assert browser.get(f"{OIDC}/callback", params=late).status_code == 401
    for change in ({"state": "x"}, {"iss": "https://evil.org"}, {"code": "x"}):
        assert (
            browser.get(f"{OIDC}/callback", params={**begin(browser), **change}).status_code == 401
        )
    denied = {"state": begin(browser)["state"], "error": "access_denied"}
    answer = browser.get(f"{OIDC}/callback", params=denied)
    assert (answer.status_code, "access_denied" in answer.text) == (401, True)
    denied = {"state": begin(browser)["state"], "error": "<script>alert(1)</script>"}
    assert "<script>" not in browser.get(f"{OIDC}/callback", params=denied).text
    # A code of another login is refused by PKCE.
    mine, theirs = begin(browser), begin(other)
    stolen = {**mine, "code": theirs["code"]}
    assert browser.get(f"{OIDC}/callback", params=stolen).status_code == 401
    # Only the way back from the provider may come from another site.
    far = {"Sec-Fetch-Site": "cross-site"}
    for path in (f"{OIDC}/start", "/", "/api/v1/me"):
        assert browser.get(path, headers=far).status_code == 403


def test_another_server_finishes_what_one_began(team: Team) -> None:
    one, other = team.server(), team.server()
    back = team.issuer.authorize(one.get(f"{OIDC}/start").headers["location"])
    other.cookies = one.cookies
    assert other.get(f"{OIDC}/callback", params=back).status_code == 200
    assert me(one, str(other.cookies.get("trmcloud_session"))).status_code == 200


def test_who_is_let_in_and_as_what(team: Team) -> None:
    browser = team.server()
    team.issuer.email, team.issuer.subject = "Bob@Example.com", "0002"
    assert team.log_in(browser).status_code == 200
    assert me(browser).json()["role"] == "viewer", "of the domain, and nothing more"
    team.people.add("bob@example.com", Role.MEMBER, projects=("vision",))
    assert me(browser).json() == {
        "person": "bob@example.com", "role": "member", "projects": ["vision"],
    }  # fmt: skip
    # The address belongs to another account now: nobody inherits the role with it.
    team.issuer.subject = "0003"
    assert "another account" in team.log_in(browser).text
    team.people.disable("bob@example.com")
    assert me(browser).status_code == 401
    assert team.log_in(browser).status_code == 401
    team.people.add("bob@example.com", Role.VIEWER)
    assert team.log_in(browser).status_code == 200, "added anew, it is the new account's"
    team.people.add("ci@example.com", Role.MEMBER, is_service=True)
    team.issuer.email = "ci@example.com"
    assert team.log_in(browser).status_code == 401, "a service has a token"
    refused = [e.act for e in team.people.team.acts() if e.act.decision == "refused"]
    assert refused


def test_groups_give_roles_at_each_login(tmp_path: Path) -> None:
    roles = {"ml": Role.MEMBER, "ml-leads": Role.LEAD}
    team = Team(tmp_path, LoginRules(frozenset({"example.com"}), roles))
    browser = team.server()
    for groups, role in (
        (("ml", "ml-leads"), "lead"), (("ml",), "member"), (("wiki",), "viewer"), ((), "viewer"),
    ):  # fmt: skip
        team.issuer.groups = groups
        assert team.log_in(browser).status_code == 200
        assert me(browser).json()["role"] == role


def test_a_terminal_is_let_in_by_a_browser_and_by_nothing_else(team: Team) -> None:
    browser, terminal = team.server(), team.server()

    def poll(device: str) -> Any:
        return terminal.post(f"{OIDC}/device/token", json={"device": device})

    def confirm(code: str, answer: str = "yes", **headers: str) -> Any:
        told = headers or {"Origin": HERE}
        return browser.post(f"{OIDC}/confirm", data={"code": code, "answer": answer}, headers=told)

    begun = terminal.post(f"{OIDC}/device", json={}).json()
    assert begun["url"] == f"{HERE}{OIDC}/start?device={begun['code']}"
    assert poll(begun["device"]).status_code == 202
    assert confirm(begun["code"]).status_code == 401, "nobody is logged in"
    shown = team.log_in(browser, begun["code"])
    assert begun["code"] in shown.text
    assert "ada@example.com" in shown.text
    assert poll(begun["device"]).status_code == 202, "a login alone lets no terminal in"
    assert confirm(begun["code"], Origin="https://evil.org").status_code == 403
    assert confirm(begun["code"], X_None="1").status_code == 403
    assert confirm("BBBB-BBBB").status_code == 404
    assert confirm(begun["code"]).status_code == 200
    assert confirm(begun["code"]).status_code == 404, "once"
    got = poll(begun["device"])
    assert got.status_code == 200
    assert me(terminal, got.json()["token"]).json()["role"] == "lead"
    assert poll(begun["device"]).status_code == 401, "its token is shown once"

    begun = terminal.post(f"{OIDC}/device", json={}).json()
    team.log_in(browser, begun["code"])
    assert confirm(begun["code"], "no").status_code == 200
    assert "denied" in poll(begun["device"]).json()["error"]

    begun = terminal.post(f"{OIDC}/device", json={}).json()
    team.now.at += FLOW_S
    assert poll(begun["device"]).status_code == 401
    assert browser.get(f"{OIDC}/start", params={"device": begun["code"]}).status_code == 404
    assert poll("x").status_code == 401
    assert terminal.post(f"{OIDC}/device/token", content=b"[").status_code == 422


def test_logins_that_are_begun_again_and_again_are_slowed_down(team: Team) -> None:
    browser = team.server()
    for _ in range(MOST_BEGUN):
        assert browser.post(f"{OIDC}/device", json={}).status_code == 200
    answer = browser.post(f"{OIDC}/device", json={})
    assert (answer.status_code, "within a minute" in answer.json()["error"]) == (409, True)
    assert browser.get(f"{OIDC}/start").status_code != 302
    team.now.at += 60
    assert team.log_in(browser).status_code == 200


def test_a_provider_that_is_down_or_another_is_told_in_one_line(team: Team) -> None:
    browser = team.server()
    team.issuer.is_down = True
    answer = browser.get(f"{OIDC}/start")
    assert answer.status_code == 502
    assert "no answer from the identity provider" in answer.text
    team.issuer.is_down = False
    for says in ({"issuer": f"{ISSUER}/"}, {"authorization_endpoint": "http://login.example.com"}):
        team.issuer.says = says
        assert team.server().get(f"{OIDC}/start").status_code == 502, says
    with pytest.raises(UsageError, match="https"):
        require_safe("http://login.example.com", "--oidc")
    client = Client(ISSUER, "trmcloud", SECRET, f"{HERE}{OIDC}/callback")
    odd = OpenIdProvider(client, team.now, lambda request: b"[" * 100_000)
    with pytest.raises(LinkError, match="no JSON object"):
        odd.authorization_url("s", "n", "v")
