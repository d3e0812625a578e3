"""Logging in at an identity provider: in a browser, and for a terminal that has none.

A browser gets a session in a cookie that its scripts cannot read. A terminal shows an address and a
code, as in the device flow of RFC 8628; who opens the address logs in, and confirms the code. What
is remembered in between is in the ledger's database (``ports.team.Ticket``), for all servers.
"""

from __future__ import annotations

import hmac
import html
import json
import secrets
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response

from trmcloud.core.control.grants import is_principal
from trmcloud.core.errors import (
    AccessDenied,
    AuthError,
    ConflictError,
    NotFoundError,
    TrmcloudError,
    UsageError,
)
from trmcloud.core.text import one_line
from trmcloud.core.values import replace
from trmcloud.io.web_guard import BodyRefused, headers_of, read_body
from trmcloud.ports.team import Person, Role, Ticket
from trmcloud.server.openid_provider import Identity, OpenIdProvider
from trmcloud.server.people import LOGIN_S, People, Session, digest_of
from trmcloud.server.rights import V1

PATH = f"{V1}/oidc"
CALLBACK = f"{PATH}/callback"
SESSION_COOKIE = "trmcloud_session"
_FLOW_COOKIE = "trmcloud_login"
SESSION_S = 12 * 3600.0
FLOW_S = 600.0
"""A login that was begun ends within so long."""
POLL_EVERY_S = 2.0
MOST_BEGUN, BEGUN_WITHIN_S = 120, 60.0
"""Logins that may be begun at one server within so long: each is a write, and needs no token."""
_CODE_LETTERS = "BCDFGHJKLMNPQRSTVWXZ"
"""Without vowels and digits, as RFC 8628 (section 6.1) recommends."""
_MOST_FORM_BYTES = 4096
_PAGE_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; "
    "frame-ancestors 'none'; base-uri 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


@dataclass(frozen=True)
class LoginRules:
    """``domains``: those of email addresses whose unknown owners are added as viewers. ``roles``:
    by groups of the provider, the role of their members; empty: roles are given on the server."""

    domains: frozenset[str] = frozenset()
    roles: Mapping[str, Role] | None = None


def person_of(people: People, identity: Identity, rules: LoginRules) -> Person:
    """The person that an account of the provider belongs to, by its email address.

    Raises:
        AuthError: it is nobody's who may log in.
    """
    name = identity.email
    known = people.team.person(name) if is_principal(name) else None
    if known is None:
        if not is_principal(name) or name.rpartition("@")[2] not in rules.domains:
            raise AuthError(
                f"{one_line(name)[:64]} is no person of this server",
                next_step="an administrator adds people: trmcloud server add EMAIL",
            )
        known = people.add(name, Role.VIEWER)
    if known.disabled_at is not None or known.is_service:
        raise AuthError(f"{name} may not log in", next_step="ask an administrator of the server")
    if not people.team.bind_subject(name, identity.issuer, identity.subject):
        raise AuthError(
            f"{name} is another account of the identity provider than before",
            next_step=f"an administrator: trmcloud server remove {name}, then server add",
        )
    if rules.roles:
        found = [role for group, role in rules.roles.items() if group in identity.groups]
        role = max(found, key=lambda each: each.rank, default=Role.VIEWER)
        if role is not known.role:
            known = replace(known, role=role)
            people.team.keep_person(known)
    return known


class OpenIdLogin:
    """The endpoints below ``/api/v1/oidc``. ``public_url``: the server as browsers reach it."""

    def __init__(
        self, people: People, provider: OpenIdProvider, rules: LoginRules, public_url: str
    ) -> None:
        self._people, self._provider, self._rules = people, provider, rules
        self._url = public_url.rstrip("/")
        self._is_secure = self._url.startswith("https:")
        self._begun: deque[float] = deque(maxlen=MOST_BEGUN)
        self._lock = threading.Lock()

    async def describe(self, request: Request) -> Response:
        """Whether people log in at a provider here, and at which."""
        return JSONResponse({"issuer": self._provider.client.issuer, "poll_every_s": POLL_EVERY_S})

    # -- in a browser ------------------------------------------------------------------------------

    async def start(self, request: Request) -> Response:
        """Send the browser to the provider."""
        code = request.query_params.get("device", "")
        try:
            if code:
                await run_in_threadpool(self._waiting, code)
            url, cookie = await run_in_threadpool(self._begin, code)
        except TrmcloudError as error:
            return _page_of(error)
        answer = RedirectResponse(url, 302, headers=_PAGE_HEADERS)
        # Lax: the provider's redirect comes from another site.
        self._set(answer, _FLOW_COOKIE, cookie, FLOW_S, PATH, "lax")
        return answer

    async def callback(self, request: Request) -> Response:
        """Take the browser back from the provider, with a session."""
        cookie = cookie_of(headers_of(request.scope), _FLOW_COOKIE)
        address = request.client.host if request.client else ""
        try:
            person, code = await run_in_threadpool(
                self._finish, dict(request.query_params), cookie, address
            )
            shown = await run_in_threadpool(self._session_for, person, address)
            answer = self._confirmation(person, code) if code else _on_to_the_page()
        except TrmcloudError as error:
            answer = _page_of(error)
            answer.delete_cookie(_FLOW_COOKIE, path=PATH)
            return answer
        answer.delete_cookie(_FLOW_COOKIE, path=PATH)
        self._set(answer, SESSION_COOKIE, shown, SESSION_S, "/", "strict")
        return answer

    def _begin(self, code: str) -> tuple[str, str]:
        """(the provider's address, the browser's cookie)"""
        self._require_pace()
        state, nonce, verifier, cookie = (secrets.token_urlsafe(32) for _ in range(4))
        url = self._provider.authorization_url(state, nonce, verifier)
        now = self._people.now()
        facts = {
            "of": "login",
            "nonce": nonce,
            "verifier": verifier,
            "browser": digest_of(cookie),
            "device": code,
        }
        self._people.team.keep_ticket(Ticket(digest_of(state), now + FLOW_S, facts), now)
        return url, cookie

    def _require_pace(self) -> None:
        """
        Raises:
            ConflictError: too many logins were begun just now.
        """
        now = self._people.now()
        with self._lock:
            if len(self._begun) == MOST_BEGUN and now - self._begun[0] < BEGUN_WITHIN_S:
                raise ConflictError(
                    f"{MOST_BEGUN} logins were begun within a minute", next_step="try again later"
                )
            self._begun.append(now)

    def _finish(self, given: Mapping[str, str], cookie: str, address: str) -> tuple[Person, str]:
        """(who has logged in, the code of a terminal that waits, or nothing)

        Raises:
            AuthError: the login is none of this browser's, was finished before, or was refused.
        """
        team, now = self._people.team, self._people.now()
        ticket = team.take_ticket(digest_of(given.get("state", "")), now)
        if ticket is None or ticket.facts.get("of") != "login":
            raise AuthError(
                f"this login was finished before, or began more than {FLOW_S / 60:.0f} minutes ago",
                next_step="begin it again",
            )
        facts = ticket.facts
        if not hmac.compare_digest(digest_of(cookie), facts["browser"]):
            raise AuthError("this login began in another browser", next_step="begin it again here")
        if given.get("iss", self._provider.client.issuer) != self._provider.client.issuer:
            raise AuthError("the answer is another provider's", next_step="begin it again")
        if "code" not in given:
            why = one_line(given.get("error", "no code"))[:60]
            raise AuthError(f"the identity provider refuses the login: {why}")
        identity = self._provider.redeem(given["code"], facts["verifier"], facts["nonce"])
        try:
            return person_of(self._people, identity, self._rules), facts["device"]
        except AuthError as error:
            unknown = Person(identity.email[:64], Role.VIEWER)
            self._people.note(
                Session(unknown, "", address), "login at the identity provider", "refused",
                {"why": str(error)},
            )  # fmt: skip
            raise

    def _session_for(self, person: Person, address: str) -> str:
        made, shown = self._people.make_token(person.name, lasts_s=SESSION_S, about="browser")
        self._people.note(
            Session(person, made.id, address), "login at the identity provider", "allowed"
        )
        return shown

    def _set(
        self, answer: Response, name: str, value: str, lasts_s: float, path: str, site: str
    ) -> None:
        answer.set_cookie(
            name, value, max_age=int(lasts_s), path=path, secure=self._is_secure, httponly=True,
            samesite=site,  # type: ignore[arg-type]
        )  # fmt: skip

    # -- for a terminal ----------------------------------------------------------------------------

    async def begin_device(self, request: Request) -> Response:
        """Begin the login of a terminal: the address to open, the code that is shown there."""
        address = request.client.host if request.client else ""
        return JSONResponse(await run_in_threadpool(self._begin_device, address))

    def _begin_device(self, address: str) -> Mapping[str, object]:
        self._require_pace()
        device, now = secrets.token_urlsafe(32), self._people.now()
        letters = "".join(secrets.choice(_CODE_LETTERS) for _ in range(8))
        code = f"{letters[:4]}-{letters[4:]}"
        waits = {"of": "device", "state": "waiting", "person": "", "code": code, "from": address}
        team = self._people.team
        team.keep_ticket(Ticket(digest_of(device), now + FLOW_S, waits), now)
        named = {"of": "code", "device": digest_of(device)}
        team.keep_ticket(Ticket(digest_of(code), now + FLOW_S, named), now)
        return {
            "device": device,
            "code": code,
            "url": f"{self._url}{PATH}/start?device={code}",
            "expires_s": FLOW_S,
            "poll_every_s": POLL_EVERY_S,
        }

    async def confirm(self, request: Request) -> Response:
        """Let the terminal in that shows the code, or not, as the browser's person says."""
        headers = headers_of(request.scope)
        address = request.client.host if request.client else ""
        try:
            if headers.get("origin") is None and headers.get("sec-fetch-site") is None:
                raise AccessDenied("the request does not say from which page it comes")
            body = await _form(request)
            session = await run_in_threadpool(
                self._people.session, cookie_of(headers, SESSION_COOKIE), address
            )
            is_let_in = body.get("answer") == "yes"
            await run_in_threadpool(self._answer, session, body.get("code", ""), is_let_in)
        except TrmcloudError as error:
            return _page_of(error)
        told = (
            "You can close this page; the terminal continues." if is_let_in else "It is not let in."
        )
        return _page("Terminal", f"<p>{html.escape(told)}</p>")

    def _answer(self, session: Session, code: str, is_let_in: bool) -> None:
        team, now = self._people.team, self._people.now()
        named = team.take_ticket(digest_of(code), now)
        if named is None or named.facts.get("of") != "code":
            raise _no_terminal()
        ticket = team.ticket(named.facts["device"], now)
        if ticket is None or ticket.facts.get("state") != "waiting":
            raise _no_terminal()
        state = "allowed" if is_let_in else "denied"
        facts = {**ticket.facts, "state": state, "person": session.person.name}
        team.keep_ticket(Ticket(ticket.id, ticket.expires_at, facts), now)
        self._people.note(
            session, "login of a terminal", "allowed" if is_let_in else "refused",
            {"from": ticket.facts["from"]},
        )  # fmt: skip

    async def poll_device(self, request: Request) -> Response:
        """The token of a terminal that was let in, once; else that it waits."""
        body = await _json(request)
        made = await run_in_threadpool(self._poll, str(body.get("device", "")))
        return JSONResponse(made or {"state": "waiting"}, 200 if made else 202)

    def _poll(self, device: str) -> Mapping[str, object] | None:
        team, now = self._people.team, self._people.now()
        ticket = team.ticket(digest_of(device), now)
        if ticket is None or ticket.facts.get("of") != "device":
            raise AuthError("this login has expired, or was used", next_step="trmcloud login URL")
        if ticket.facts["state"] == "waiting":
            return None
        if team.take_ticket(ticket.id, now) is None:
            raise AuthError("this login was used", next_step="trmcloud login URL")
        if ticket.facts["state"] == "denied":
            raise AuthError("the login was denied in the browser", next_step="trmcloud login URL")
        person = self._people.require(ticket.facts["person"])
        if person.disabled_at is not None:
            raise AuthError(f"{person.name} may not log in")
        token, shown = self._people.make_token(person.name, lasts_s=LOGIN_S, about="terminal")
        return {
            "token": shown,
            "person": person.name,
            "role": person.role.value,
            "expires_s": (token.expires_at or 0.0) - token.made_at,
        }

    def _waiting(self, code: str) -> Mapping[str, str]:
        """The facts of the terminal that shows ``code``.

        Raises:
            NotFoundError: none does any more.
        """
        team, now = self._people.team, self._people.now()
        named = team.ticket(digest_of(code), now)
        if named is None or named.facts.get("of") != "code":
            raise _no_terminal()
        ticket = team.ticket(named.facts["device"], now)
        if ticket is None:
            raise _no_terminal()
        return ticket.facts

    def _confirmation(self, person: Person, code: str) -> Response:
        facts = self._waiting(code)
        shown, name = html.escape(code), html.escape(person.name)
        place = html.escape(facts["from"] or "an unknown address")
        return _page(
            "Log in a terminal?",
            f"<p>A terminal at {place} asks to work as <b>{name}</b>. Let it in only if "
            f"you have started this yourself and it shows this code:</p><p><code>{shown}</code></p>"
            f'<form method="post" action="{PATH}/confirm">'
            f'<input type="hidden" name="code" value="{shown}">'
            '<button name="answer" value="yes">Let it in</button> '
            '<button name="answer" value="no">Do not</button></form>',
        )


# -- cookies and pages -----------------------------------------------------------------------------


def cookie_of(headers: Mapping[str, str], name: str) -> str:
    """The value of a request's cookie; empty where there is none."""
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(name)
    except CookieError:
        return ""
    return found.value if found is not None else ""


def session_in(headers: Mapping[str, str]) -> str:
    """The token of a request's session; empty unless the browser says that a page of this server
    asks, which no other page can have it say."""
    if headers.get("sec-fetch-site") != "same-origin":
        return ""
    return cookie_of(headers, SESSION_COOKIE)


def end_session(answer: Response) -> None:
    """Have the browser forget its session."""
    answer.delete_cookie(SESSION_COOKIE, path="/")


def _on_to_the_page() -> Response:
    # A redirect would count as one of the provider's site, and the strict cookie not be sent.
    return _page("Logged in", '<p><a href="/">Continue</a></p>', '<meta http-equiv="refresh" '
                 'content="0;url=/">')  # fmt: skip


def _page(title: str, body: str, head: str = "", status: int = 200) -> Response:
    shown = html.escape(title)
    return HTMLResponse(
        f'<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width">{head}<title>{shown}</title>'
        "<style>body{font:16px/1.5 system-ui,sans-serif;max-width:40rem;margin:4rem auto;"
        "padding:0 1rem}code{font-size:1.5rem}button{font:inherit;padding:.4rem 1rem}</style>"
        f"</head><body><main><h1>{shown}</h1>{body}</main></body></html>",
        status,
        headers=_PAGE_HEADERS,
    )


def _page_of(error: TrmcloudError) -> Response:
    status = 403 if isinstance(error, AccessDenied) else 401
    status = 404 if isinstance(error, NotFoundError) else status
    status = status if isinstance(error, AccessDenied | AuthError | NotFoundError) else 502
    told = f"{error}. {error.next_step}".strip() if error.next_step else str(error)
    return _page("Not logged in", f"<p>{html.escape(one_line(told))}</p>", status=status)


def _no_terminal() -> NotFoundError:
    return NotFoundError(
        "no terminal waits with this code", next_step="trmcloud login URL, in the terminal"
    )


async def _form(request: Request) -> Mapping[str, str]:
    try:
        body = await read_body(request.stream(), _MOST_FORM_BYTES, 30.0)
        found = parse_qs(body.decode("ascii"), max_num_fields=8)
    except (BodyRefused, ValueError):
        raise UsageError("the form cannot be read") from None
    return {name: values[0] for name, values in found.items()}


async def _json(request: Request) -> Mapping[str, object]:
    try:
        made = json.loads(await read_body(request.stream(), _MOST_FORM_BYTES, 30.0))
    except (BodyRefused, ValueError, RecursionError):
        made = None
    if not isinstance(made, dict):
        raise UsageError("the body is no JSON object")
    return made
