"""The server over HTTP: who asks, and which request does what. ``rights`` judges both."""

from __future__ import annotations

import contextlib
import ipaddress
import json
import re
import shlex
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from trmcloud.core.errors import (
    AccessDenied,
    AuthError,
    BudgetRefused,
    ConflictError,
    LedgerError,
    NotFoundError,
    NotSupported,
    TrmcloudError,
    UsageError,
)
from trmcloud.core.money import Usd
from trmcloud.core.text import one_line
from trmcloud.io.web_guard import (
    AllowedHosts,
    BodyRefused,
    headers_of,
    mark_trusted,
    read_body,
)
from trmcloud.ports.team import Person, Raise, Role
from trmcloud.server import openid_login, rights
from trmcloud.server.audit import audit_json
from trmcloud.server.openid_login import OpenIdLogin
from trmcloud.server.people import People, Session
from trmcloud.server.rights import ENDPOINTS, V1, Allowed, Endpoint, KnownRun, Parsed
from trmcloud.server.running import CommandRunner, line_of
from trmcloud.server.visitor import Visitor, set_visitor

MAX_BODY_BYTES = 1 << 18
BODY_WITHIN_S = 30.0
AUDIT = "/api/audit"
MCP = "/mcp"
SESSION = "trmcloud.session"
"""Key of a request's scope: the session of an agent."""
_STATUS: Mapping[type[TrmcloudError], int] = {
    AccessDenied: 403,
    AuthError: 401,
    NotFoundError: 404,
    ConflictError: 409,
    BudgetRefused: 409,
    UsageError: 422,
    NotSupported: 422,
    LedgerError: 503,
}
_STATUS_OF_CODE: Mapping[int, int] = {2: 422, 3: 404, 4: 409, 5: 409, 7: 503, 8: 409, 15: 502}
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:@-]{0,99}")


@dataclass(frozen=True)
class TrustedProxy:
    """A reverse proxy that has checked who asks, and says so in ``header``; it connects from one
    of ``networks``."""

    header: str
    networks: tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]

    def is_from(self, address: str) -> bool:
        try:
            found = ipaddress.ip_address(address)
        except ValueError:
            return False
        return any(found in network for network in self.networks)


@dataclass(frozen=True)
class Settings:
    """``names``: the hosts by which the server may be called. ``four_eyes``: the sum above which a
    second person decides. ``local_commands``: see ``rights.judge``."""

    names: AllowedHosts
    project: str = "default"
    four_eyes: Usd | None = None
    local_commands: bool = False
    proxy: TrustedProxy | None = None


def _no_spending(visitor: Visitor, month: str, by: str) -> Mapping[str, Any]:
    raise NotSupported("this server shows no spending")


@dataclass(frozen=True)
class Doors:
    """Functions of the command line's side that the server calls: ``parse`` reads a command line,
    ``runs`` lists what is known of runs, ``request_usd`` is as in ``rights.judge``, ``page`` is the
    page's ASGI application, ``spending`` returns the document of a month, by a grouping, as a
    visitor sees it. ``mcp`` is the ASGI application of the tools for agents; None where its
    packages are missing."""

    parse: Callable[[Sequence[str]], Parsed]
    runs: Callable[[], Sequence[KnownRun]]
    page: Any
    code_of: Callable[[TrmcloudError], str]
    request_usd: Callable[[str], Usd | None] = lambda request: None
    spending: Callable[[Visitor, str, str], Mapping[str, Any]] = _no_spending
    mcp: Any = None


_Handler = Callable[[Request, Session, Endpoint], Awaitable[Response]]


class TeamServer:
    """The ASGI application. Each request is first asked for its host, its origin and its person."""

    def __init__(
        self, people: People, runner: CommandRunner, settings: Settings, doors: Doors,
        lifespan: Callable[[Any], Any], openid: OpenIdLogin | None = None,
    ) -> None:  # fmt: skip
        self._people, self._runner = people, runner
        self._settings, self._doors = settings, doors
        special: dict[tuple[str, str], _Handler] = {
            ("GET", f"{V1}/health"): self._health,
            ("POST", f"{V1}/login"): self._log_in,
            ("GET", f"{V1}/me"): self._me,
            ("GET", f"{V1}/spend"): self._spend,
            ("DELETE", f"{V1}/me/token"): self._log_out,
            ("POST", f"{V1}/uploads"): self._upload,
            ("POST", f"{V1}/commands"): self._command,
            ("GET", f"{V1}/commands/{{id}}/files/{{name:path}}"): self._file,
        }
        for (method, path), act in _openid_acts(openid).items():
            special[method, path] = _without_session(act)
        routes = [
            self._route(each, special.get((each.method, each.path), self._document))
            for each in ENDPOINTS
        ]
        self._api = Starlette(
            routes=routes,
            lifespan=lifespan,
            exception_handlers={TrmcloudError: self._failed, Exception: _unexpected},
        )

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._api(scope, receive, send)
            return
        headers, path = headers_of(scope), scope["path"]
        # A browser that comes back from the identity provider comes from another site.
        is_back = (scope["method"], path) == ("GET", openid_login.CALLBACK)
        if refused := self._why_not(scope, headers, is_back=is_back):
            await self._answer(scope, receive, send, AccessDenied(refused[1]), refused[0])
            return
        if path.startswith(f"{V1}/") or path == V1:
            await self._api(scope, receive, send)
            return
        if path == MCP and self._doors.mcp is not None:
            await self._serve_agent(scope, receive, send, headers)
            return
        if path.startswith("/api/"):
            try:
                session = await run_in_threadpool(self._session, scope, headers)
                await run_in_threadpool(
                    rights.require_page, session.person, scope["method"], path, self._doors.runs
                )
                if scope["method"] != "GET":
                    await self._note(session, f"{scope['method']} {path}, on the page", "allowed")
            except TrmcloudError as error:
                await self._answer(scope, receive, send, error)
                return
            mark_trusted(scope)
            if path == AUDIT:
                await self._show_audit(scope, receive, send)
                return
            set_visitor(scope, await run_in_threadpool(self._visitor, session.person))
        await self._doors.page(scope, receive, send)

    # -- who asks ----------------------------------------------------------------------------------

    def _why_not(
        self, scope: Any, headers: Mapping[str, str], *, is_back: bool = False
    ) -> tuple[int, str] | None:
        host = headers.get("host", "")
        if refused := self._settings.names.refusal(host):
            return refused
        origin = headers.get("origin", f"https://{host}").lower()
        if origin not in (f"http://{host}", f"https://{host}") and not is_back:
            return 403, "the request comes from another site"
        site = headers.get("sec-fetch-site", "same-origin")
        if site not in ("same-origin", "none") and not is_back:
            return 403, "asked from another site"
        proxy = self._settings.proxy
        if proxy is not None and proxy.header in headers and not proxy.is_from(_address(scope)):
            return 403, f"{proxy.header} is taken only from the proxy, not from {_address(scope)}"
        return None

    def _session(self, scope: Any, headers: Mapping[str, str]) -> Session:
        """
        Raises:
            AuthError: nobody is named who may ask.
        """
        address, proxy = _address(scope), self._settings.proxy
        if proxy is not None and (named := headers.get(proxy.header, "")):
            person = self._people.team.person(named)
            if person is None or person.disabled_at is not None:
                raise AuthError(
                    f"{one_line(named)[:64]} is no person of this server",
                    next_step="an administrator adds people: trmcloud server add NAME",
                )
            return Session(person, "", address)
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if not token:
            scheme, token = "bearer", openid_login.session_in(headers)
        return self._people.session(token if scheme.lower() == "bearer" else "", address)

    async def _serve_agent(
        self, scope: Any, receive: Any, send: Any, headers: Mapping[str, str]
    ) -> None:
        """Pass on what an agent asks, with who it is; each of its calls is judged by ``gate``."""
        try:
            session = await run_in_threadpool(self._session, scope, headers)
            rights.require_role(session.person, Role.VIEWER, MCP)
        except TrmcloudError as error:
            await self._answer(scope, receive, send, error)
            return
        mark_trusted(scope)
        scope[SESSION] = session
        await self._doors.mcp(scope, receive, send)

    def judge_tool(self, session: Session, tool: str, given: Mapping[str, Any]) -> None:
        """Judge an agent's call, and write the decision into the audit log where it is more than
        looking.

        Raises:
            AccessDenied, UsageError: it is refused.
        """
        what = _tool_text(tool, given)
        try:
            rule = rights.judge_tool(session.person, tool, given)
        except TrmcloudError as error:
            self._people.note(session, what, "refused", {"why": str(error)})
            raise
        if rule.role is not Role.VIEWER:
            self._people.note(session, what, "allowed")

    def note_tool(
        self, session: Session, tool: str, given: Mapping[str, Any], told: Mapping[str, Any]
    ) -> None:
        """Write what came of an agent's call, with the run and its dollars."""
        rule = rights.TOOLS.get(tool)
        if rule is None or rule.role is Role.VIEWER or rule.where is rights.Where.REFUSED:
            return
        run = str(told.get("run") or "")
        known = [each for each in self._doors.runs() if run and each.run_id == run]
        facts: dict[str, Any] = {"exit_code": 1 if "error" in told else 0}
        if rule.spends:
            facts["runs"] = {
                each.run_id: {
                    "cap_usd": each.cap.plain(),
                    "settled_usd": each.settled.plain(),
                }
                for each in known
            }
        self._people.note(session, _tool_text(tool, given), "done", facts)

    def project_of(self, person: Person) -> str:
        """The project that what an agent of the person's launches is charged to."""
        return person.projects[0] if person.projects else self._settings.project

    def _visitor(self, person: Person) -> Visitor:
        """What the page shows to ``person``: as ``server raises``, commands that wait to leads."""
        raises: Sequence[Raise] = ()
        if person.role.includes(rights.rule_of("server raises").role):
            raises = self._people.team.raises()
        return Visitor(person.projects, tuple(raises))

    def _route(self, endpoint: Endpoint, handler: _Handler) -> Route:
        async def answer(request: Request) -> Response:
            if endpoint.is_open:
                return await handler(request, _NOBODY, endpoint)
            session = await run_in_threadpool(
                self._session, request.scope, headers_of(request.scope)
            )
            what = f"{endpoint.method} {endpoint.path}"
            try:
                rights.require_role(session.person, endpoint.role, what)
            except AccessDenied as error:
                await self._note(session, what, "refused", why=str(error))
                raise
            mark_trusted(request.scope)
            return await handler(request, session, endpoint)

        return Route(endpoint.path, answer, methods=[endpoint.method])

    # -- endpoints ---------------------------------------------------------------------------------

    async def _health(self, request: Request, session: Session, endpoint: Endpoint) -> Response:
        """Say whether the ledger can be read, and nothing else: no token is asked for."""
        try:
            await run_in_threadpool(self._doors.runs)
        except TrmcloudError:
            return JSONResponse({"status": "unavailable"}, 503)
        return JSONResponse({"status": "ok"})

    async def _log_in(self, request: Request, session: Session, endpoint: Endpoint) -> Response:
        body = await _body(request)
        name, password = body.get("name"), body.get("password")
        if not isinstance(name, str) or not isinstance(password, str):
            raise UsageError("name and password are needed")
        token, shown = await run_in_threadpool(self._people.log_in, name, password)
        made = self._people.require(name)
        await self._note(Session(made, token.id, _address(request.scope)), "login", "allowed")
        told = {"token": shown, "person": name, "role": made.role.value}
        return JSONResponse({**told, "expires_s": (token.expires_at or 0.0) - token.made_at})

    async def _me(self, request: Request, session: Session, endpoint: Endpoint) -> Response:
        person = session.person
        told = {"person": person.name, "role": person.role.value, "projects": person.projects}
        return JSONResponse(told)

    async def _spend(self, request: Request, session: Session, endpoint: Endpoint) -> Response:
        visitor = await run_in_threadpool(self._visitor, session.person)
        asked = [request.query_params.get(name, "") for name in ("month", "by")]
        return JSONResponse(await run_in_threadpool(self._doors.spending, visitor, *asked))

    async def _show_audit(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer with the newest acts before ``before``, of one person where it is named."""
        asked = Request(scope).query_params
        told = await run_in_threadpool(
            audit_json, self._people.team, asked.get("person", ""), asked.get("before", "")
        )
        await JSONResponse(told)(scope, receive, send)

    async def _log_out(self, request: Request, session: Session, endpoint: Endpoint) -> Response:
        if session.token:
            await run_in_threadpool(self._people.revoke, session.token)
        answer = JSONResponse({"revoked": bool(session.token)})
        openid_login.end_session(answer)
        return answer

    async def _upload(self, request: Request, session: Session, endpoint: Endpoint) -> Response:
        key = await self._runner.take_upload(session.person.name, _parts(request))
        return JSONResponse({"upload": key}, 201)

    async def _command(self, request: Request, session: Session, endpoint: Endpoint) -> Response:
        body = await _body(request)
        words = body.get("words")
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise UsageError("words: a list of text is needed")
        allowed = await self._judged(session, words)
        more = {name: str(body.get(name) or "") for name in ("upload", "below")}
        if any(more.values()) and not allowed.takes_tree:
            raise UsageError("files are sent only with run, or a sweep of a command")
        inputs = _inputs(allowed, body.get("inputs") or {})
        variables = self._variables(session, allowed, body)
        messages = self._messages(session, allowed, variables, inputs, **more)

        async def lines() -> AsyncIterator[bytes]:
            async with contextlib.aclosing(messages):
                try:
                    async for message in messages:
                        yield line_of(message)
                except TrmcloudError as error:
                    yield line_of(self._as_message(error))

        return StreamingResponse(
            lines(), media_type="application/x-ndjson", headers={"X-Accel-Buffering": "no"}
        )

    async def _document(self, request: Request, session: Session, endpoint: Endpoint) -> Response:
        """Answer with the JSON document of a command."""
        body = await _body(request) if endpoint.method == "POST" else {}
        words = _words_of(endpoint, request.path_params, body)
        allowed = await self._judged(session, words)
        out, code = [], 1
        variables = self._variables(session, allowed, body)
        async with contextlib.aclosing(self._messages(session, allowed, variables)) as messages:
            async for message in messages:
                out.append(message.get("out", ""))
                code = message.get("exit_code", code)
        try:
            document = json.loads("".join(out).strip().splitlines()[-1]) if out else {}
        except (ValueError, IndexError):
            document = _whole("".join(out))
        status = 200 if code == 0 or ("schema" in document and "error" not in document) else 502
        if isinstance(document, dict) and str(document.get("schema", "")).startswith("error/"):
            status = _STATUS_OF_CODE.get(int(document.get("exit_code", 1)), 502)
        return JSONResponse(document, status)

    async def _file(self, request: Request, session: Session, endpoint: Endpoint) -> Response:
        asked = request.path_params
        path = self._runner.file(session.person.name, asked["id"], asked["name"])
        return FileResponse(path, media_type="application/octet-stream")

    # -- commands ----------------------------------------------------------------------------------

    async def _judged(self, session: Session, words: Sequence[str]) -> Allowed:
        """Judge a command line, and write the decision into the audit log where it is more than
        looking."""
        try:
            parsed = await run_in_threadpool(self._doors.parse, words)
            allowed = await run_in_threadpool(
                lambda: rights.judge(
                    session.person,
                    words,
                    parsed,
                    self._doors.runs,
                    four_eyes=self._settings.four_eyes,
                    local_commands=self._settings.local_commands,
                    request_usd=self._doors.request_usd,
                )
            )
        except TrmcloudError as error:
            await self._note(session, shlex.join(words), "refused", why=str(error))
            raise
        if allowed.rule.role is not Role.VIEWER:
            await self._note(session, shlex.join(allowed.words), "allowed")
        return allowed

    def _variables(
        self, session: Session, allowed: Allowed, body: Mapping[str, Any]
    ) -> dict[str, str]:
        """The environment of a command beyond the server's own.

        Raises:
            AccessDenied: a project that is not the person's.
        """
        person = session.person
        project = str(body.get("project") or "")
        if not project:
            project = person.projects[0] if person.projects else self._settings.project
        if not _WORD.fullmatch(project):
            raise UsageError(f"project {project[:40]!r} is no name")
        if not rights.sees(person, project):
            raise AccessDenied(
                f"{person.name} has no project {project}", next_step=", ".join(person.projects)
            )
        columns = body.get("columns")
        if not isinstance(columns, int) or not 20 <= columns <= 1000:
            columns = 80
        return {
            "TRMCLOUD_PRINCIPAL": allowed.principal,
            "TRMCLOUD_PROJECTS": ",".join(person.projects),
            "TRMCLOUD_PROJECT": project,
            "TRMCLOUD_AT_SERVER": "1",
            "LOGNAME": person.name,
            "COLUMNS": str(columns),
        }

    async def _messages(
        self,
        session: Session,
        allowed: Allowed,
        variables: Mapping[str, str],
        inputs: Mapping[str, str] | None = None,
        upload: str = "",
        below: str = "",
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Run a command that was judged; its messages. ``inputs``: by their names in the command's
        words, the files that were sent with it.

        Raises:
            BudgetRefused: a second person has to agree first: it waits.
        """
        if allowed.second_person is not None:
            raise await self._wait(session, allowed)
        person = session.person.name
        before = await run_in_threadpool(self._doors.runs) if allowed.principal else ()
        messages = self._runner.run(
            person, allowed.words, variables,
            upload=upload, below=below, keeps_files=allowed.writes_files,
            inputs=[
                (each.shown, name, (inputs or {})[name])
                for each in allowed.inputs
                for name in each.values
            ],
        )  # fmt: skip
        code = None
        try:
            async with contextlib.aclosing(messages):
                async for message in messages:
                    code = message.get("exit_code", code)
                    yield message
        finally:
            if allowed.rule.role is not Role.VIEWER:
                await self._note_end(session, allowed, code, before)

    async def _note_end(
        self, session: Session, allowed: Allowed, code: int | None, before: Sequence[KnownRun]
    ) -> None:
        facts: dict[str, Any] = {"exit_code": code}
        if allowed.principal:
            known = {run.run_id for run in before}
            now = await run_in_threadpool(self._doors.runs)
            mine = [run for run in now if session.person.name in run.owners]
            facts["runs"] = {
                run.run_id: {
                    "cap_usd": run.cap.plain(),
                    "settled_usd": run.settled.plain(),
                }
                for run in mine
                if run.run_id not in known
            }
        await self._note(session, shlex.join(allowed.words), "done", **facts)

    async def _wait(self, session: Session, allowed: Allowed) -> BudgetRefused:
        assert allowed.second_person is not None
        assert self._settings.four_eyes is not None
        made = Raise(
            id=f"c-{self._people.random_hex(4)}",
            asked_by=session.person.name,
            words=allowed.words,
            usd=allowed.second_person.plain(),
            asked_at=self._people.now(),
        )
        await run_in_threadpool(self._people.team.add_raise, made)
        await self._note(session, shlex.join(allowed.words), "waits", raise_id=made.id)
        return BudgetRefused(
            f"{made.id}: {allowed.second_person} is above {self._settings.four_eyes}: a second "
            "lead has to agree",
            next_step=f"another lead types trmcloud server approve {made.id}",
        )

    async def _note(self, session: Session, what: str, decision: str, **facts: Any) -> None:
        await run_in_threadpool(self._people.note, session, what, decision, facts)

    # -- errors ------------------------------------------------------------------------------------

    def _as_message(self, error: TrmcloudError) -> dict[str, Any]:
        return {
            "error": one_line(str(error)),
            "next": one_line(error.next_step),
            "code": self._doors.code_of(error),
            "exit_code": error.exit_code,
        }

    async def _failed(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, TrmcloudError)
        return JSONResponse(self._as_message(error), _status_of(error))

    async def _answer(
        self, scope: Any, receive: Any, send: Any, error: TrmcloudError, status: int = 0
    ) -> None:
        answer = JSONResponse(self._as_message(error), status or _status_of(error))
        await answer(scope, receive, send)


_NOBODY: Any = None


def _openid_acts(
    openid: OpenIdLogin | None,
) -> Mapping[tuple[str, str], Callable[[Request], Awaitable[Response]]]:
    """By method and path, what answers about logging in at an identity provider."""
    path = openid_login.PATH
    return {
        ("GET", path): openid.describe if openid else _no_provider,
        ("GET", f"{path}/start"): openid.start if openid else _no_provider,
        ("GET", openid_login.CALLBACK): openid.callback if openid else _no_provider,
        ("POST", f"{path}/device"): openid.begin_device if openid else _no_provider,
        ("POST", f"{path}/device/token"): openid.poll_device if openid else _no_provider,
        ("POST", f"{path}/confirm"): openid.confirm if openid else _no_provider,
    }


async def _no_provider(request: Request) -> Response:
    raise NotFoundError(
        "this server has no identity provider", next_step="trmcloud login URL --name NAME"
    )


def _without_session(act: Callable[[Request], Awaitable[Response]]) -> _Handler:
    async def answer(request: Request, session: Session, endpoint: Endpoint) -> Response:
        return await act(request)

    return answer


def _status_of(error: TrmcloudError) -> int:
    return next((code for kind, code in _STATUS.items() if isinstance(error, kind)), 502)


def _address(scope: Any) -> str:
    client = scope.get("client")
    return str(client[0]) if client else ""


def _tool_text(tool: str, given: Mapping[str, Any]) -> str:
    """A call as the audit log has it."""
    return f"mcp {tool} {json.dumps(dict(given), ensure_ascii=False)}"[:2000]


def _whole(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return {}


def _words_of(
    endpoint: Endpoint, path: Mapping[str, str], body: Mapping[str, Any]
) -> tuple[str, ...]:
    """The command line of an endpoint.

    Raises:
        UsageError: what stands in the path or body is no plain word.
    """
    made: list[str] = []
    for word in endpoint.command.split():
        if word == "{options}":
            made += _options(body.get("options", {}))
        elif word.startswith("{"):
            name = word.strip("{}")
            value = path.get(name) or body.get(name)
            if not isinstance(value, str) or not _WORD.fullmatch(value):
                raise UsageError(f"{name}: a name or a number is needed")
            made.append(value)
        else:
            made.append(word)
    return tuple(made)


def _inputs(allowed: Allowed, given: Any) -> dict[str, str]:
    """The files that were sent with a command, by their names in its words.

    Raises:
        UsageError: one is missing, is none of the command's, or is not to be sent.
    """
    named = {name for each in allowed.inputs for name in each.values}
    if not isinstance(given, dict) or not all(isinstance(text, str) for text in given.values()):
        raise UsageError("inputs: names with texts are needed")
    if named != set(given):
        raise UsageError(
            "the files that were sent are not those that the command names",
            next_step="send the content of each in inputs",
        )
    for text in given.values():
        rights.check_input(allowed, text)
    return dict(given)


def _options(given: Any) -> list[str]:
    """``{"budget": "100", "fit_balance": true}`` as a command line."""
    if not isinstance(given, dict) or len(given) > 100:
        raise UsageError("options: an object is needed")
    made: list[str] = []
    for name, value in given.items():
        if not re.fullmatch(r"[a-z][a-z_-]{0,40}", name):
            raise UsageError(f"{one_line(name)[:40]!r} is no name of an option")
        flag = f"--{name.replace('_', '-')}"
        if value is True:
            made.append(flag)
        elif isinstance(value, str):
            made.append(f"{flag}={value}")
        elif isinstance(value, list) and all(isinstance(each, str) for each in value):
            made += [f"{flag}={each}" for each in value]
        else:
            raise UsageError(f"{name}: a text, a list of texts, or true is needed")
    return made


async def _parts(request: Request) -> AsyncIterator[bytes]:
    try:
        async for part in request.stream():
            yield part
    except ClientDisconnect:
        raise UsageError("the client left before its files were here") from None


async def _body(request: Request) -> dict[str, Any]:
    """
    Raises:
        UsageError: it is no JSON object, is too large, or did not arrive in time.
    """
    try:
        content = await read_body(_parts(request), MAX_BODY_BYTES, BODY_WITHIN_S)
        made = json.loads(content or b"{}")
    except BodyRefused as error:
        raise UsageError(error.what) from None
    except (ValueError, RecursionError):
        raise UsageError("the body is no JSON") from None
    if not isinstance(made, dict):
        raise UsageError("the body is no JSON object")
    return made


async def _unexpected(request: Request, error: Exception) -> Response:
    """A fault of ours ends one request alone."""
    told = {"error": f"unexpected {type(error).__name__}", "next": "", "code": "error"}
    return JSONResponse({**told, "exit_code": 1}, 500)
