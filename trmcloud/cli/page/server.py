"""The page's server: who may ask, which request calls what."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import os
import re
import secrets
import signal
import socket
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from anyio import CapacityLimiter, to_thread
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from trmcloud.api import Home
from trmcloud.cli.page import details, shown
from trmcloud.cli.page.compare import compare_json
from trmcloud.cli.page.encoding import page_json
from trmcloud.cli.page.feed import MOST_STREAMS, Feed
from trmcloud.cli.page.watch import Jobs, Watch
from trmcloud.cli.views.json_output import print_line
from trmcloud.core.catalog.providers import brokered, rentable
from trmcloud.core.errors import (
    CannotListen,
    ConflictError,
    LedgerError,
    NotFoundError,
    TrmcloudError,
    UsageError,
)
from trmcloud.core.money import Usd, parse_budget
from trmcloud.core.text import one_line
from trmcloud.io.redaction import mask_tokens
from trmcloud.io.web_guard import (
    ANY_ADDRESS,
    BUSY,
    LOOPBACK,
    OF_LOOPBACK,
    AllowedHosts,
    BodyRefused,
    Refusal,
    headers_of,
    is_spare,
    mark_ending,
    mark_trusted,
    names_of,
    read_body,
    refusal_of_origin,
    refusal_of_token,
    send_json,
)
from trmcloud.io.web_server import listening, silent_server
from trmcloud.operations.checkpoints.fetching import default_folder, find_best
from trmcloud.operations.context import find_run, run_by_id
from trmcloud.operations.curves.curve_store import CurveStore
from trmcloud.operations.launch.steering import LAND, STOP, Forecast
from trmcloud.operations.money.grants import OPEN
from trmcloud.operations.money.spending import month_spending
from trmcloud.operations.runs.machine_history import machine_charts
from trmcloud.operations.views import Serving
from trmcloud.ports.machine import Progress

# Who may ask: a browser that knows the token, from this very page. Pure ASGI, before the app.
#
# A browser sends requests for other sites' pages, too; so a request has to name this server as
# its host (no other name can be made to point here), come from this origin, and carry the token
# in a header, which no form and no image can. The checks are those of ``trmcloud.io.web_server``.

API = "/api/"
HEADERS: Mapping[str, str] = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
}


class GuardedApp:
    """``app`` behind these checks, its answers with ``HEADERS``. ``names``: the hosts by which it
    may be called."""

    def __init__(self, app: Any, token: str, *, names: AllowedHosts = OF_LOOPBACK) -> None:
        self._app, self._token, self._names = app, token, names

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        refused = self._why_not(scope, headers_of(scope))
        if refused is None and is_spare(scope) and not _may_end(scope):
            refused = BUSY
        if refused is not None:
            status, why = refused
            headers = {**HEADERS, "cache-control": "no-store"}
            await send_json(send, status, {"error": why}, headers)
            return
        if scope["path"].startswith(API):
            mark_trusted(scope)

        async def with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                more = [(name.encode(), text.encode()) for name, text in HEADERS.items()]
                if scope["path"].startswith(API):
                    more.append((b"cache-control", b"no-store"))
                message = {**message, "headers": [*message["headers"], *more]}
            await send(message)

        await self._app(scope, receive, with_headers)

    def _why_not(self, scope: Any, headers: Mapping[str, str]) -> Refusal | None:
        refused = self._names.refusal(headers.get("host", "")) or refusal_of_origin(headers)
        if refused is not None or not scope["path"].startswith(API):
            return refused
        if headers.get("sec-fetch-site", "same-origin") != "same-origin":
            return 403, "asked from another site"
        refused = refusal_of_token(headers, self._token)
        if refused is None and scope["method"] == "POST":
            kind = headers.get("content-type", "").partition(";")[0].strip().lower()
            if kind != "application/json":
                return 415, "say that it is JSON: Content-Type: application/json"
        return refused


def _may_end(scope: Any) -> bool:
    """Whether a request may be one that ends a run, or denies money: its body says so; or the
    question before it."""
    return _ENDING.fullmatch(f"{scope['method']} {scope['path']}") is not None


_ENDING = re.compile(r"POST /api/(runs/[^/]+/do|approvals/[^/]+)|GET /api/runs/[^/]+/foreseen")
_ENDS = (STOP, LAND)


# The page and what it asks: runs, one run, its curves, a stream of news; what a click would cost,
# and the click itself.

STATIC = Path(__file__).resolve().parent.parent / "static"
#: Everything that is ever read from there.
FILES = {
    "asked.js": "text/javascript",
    "page.js": "text/javascript",
    "charts.js": "text/javascript",
    "details.js": "text/javascript",
    "page.css": "text/css",
    "icon.svg": "image/svg+xml",
    "uplot/uPlot.iife.min.js": "text/javascript",
    "uplot/uPlot.min.css": "text/css",
    "uplot/LICENSE": "text/plain",
    "compare.js": "text/javascript",
    "spend.js": "text/javascript",
    "views.css": "text/css",
}
MAX_BODY_BYTES = 1 << 14
BODY_WITHIN_S = 30.0
SPARE_BODY_WITHIN_S = 2.0
"""Of a connection in reserve."""
AT_ONCE = 8
"""Requests that are answered at the same time: more would only wait for the interpreter."""
ENDS_AT_ONCE = 8
"""Of those that end a run, which wait for no other."""
QUESTIONS_AT_ONCE = 2
"""Of the questions before those."""
_STATUS: dict[type[TrmcloudError], int] = {
    NotFoundError: 404, ConflictError: 409, UsageError: 422, LedgerError: 503,
}  # fmt: skip
_KEPT_S = 7 * 86_400
_CENT = Usd("0.01")


class Page:
    """``look`` opens a home that asks no provider, for what is shown at once; ``act`` one that may
    ask them all, for what was clicked; ``folder`` is where checkpoints are fetched to."""

    def __init__(
        self,
        look: Callable[[], Home],
        act: Callable[[], Home],
        folder: Path,
        version: str,
    ) -> None:
        self._home, self._act, self._folder, self._version = look(), act, folder, version
        self._lock = threading.Lock()
        self._drawing, self._draw_lock = look(), threading.Lock()
        self.feed = Feed()
        self.curves = CurveStore(lambda run_id: self.feed.tell("curves", {}, run_id))
        self.jobs = Jobs(self.feed)
        self.watch = Watch(self.feed, self.curves, act)
        self._beside, self._beside_lock = look(), threading.Lock()

    # -- looking, in threads of the pool -----------------------------------------------------------

    def all_runs(self) -> dict[str, Any]:
        with self._lock:
            runs, budgets = self._home.runs(), self._home.budgets()
            asked = [each for each in self._home.approvals() if each.state == OPEN]
        return {
            "version": self._version,
            "home": shown.as_typed(self._home.context.home),
            "project": one_line(self._home.context.caller.project),
            "runs": [shown.run_json(run) for run in runs],
            "budgets": [shown.line_json(line) for line in budgets],
            "approvals": [shown.approval_json(each) for each in asked],
            "jobs": self.jobs.to_json(),
        }

    def one_run(self, run_id: str) -> dict[str, Any]:
        with self._lock:
            context, run = self._home.context, self._home.run(run_id)
            told = shown.whole_json(context, run)
            found = self._home.checkpoints(run.id)
        told["checkpoints"] = [shown.checkpoint_json(each) for each in found]
        return {**told, "version": self._version, "jobs": self.jobs.to_json()}

    def run_curves(self, run_id: str) -> dict[str, Any]:
        with self._draw_lock:  # beside what is asked of the run: the curve is what is waited for
            context = self._drawing.context
            state = find_run(context, run_id)
            phases = self.curves.phases(context, state)
            return shown.curves_json(context, state.run_id, phases)

    # -- the lower part of a run's page: asked for once it is about to be seen ---------------------

    def run_log(self, run_id: str, phase: str, after: str) -> dict[str, Any]:
        place = int(after) if re.fullmatch(r"[0-9]{1,15}", after) else None
        with self._draw_lock:
            return details.log_json(self._drawing.context, run_id, phase, place)

    def run_machine(self, run_id: str) -> dict[str, Any]:
        with self._draw_lock:
            context = self._drawing.context
            state = find_run(context, run_id)
            charts = machine_charts(context, state, self.curves.phases(context, state))
        told: dict[str, Any] = page_json(charts)
        return told

    def run_launched(self, run_id: str) -> dict[str, Any]:
        with self._lock:
            return details.launched_json(self._home.context, run_id)

    # -- beside runs: spending and comparison ------------------------------------------------------

    def spent(self, month: str, by: str) -> dict[str, Any]:
        with self._beside_lock:
            context = self._beside.context
            ledger, now = context.ledger.read(), context.wall()
        told: dict[str, Any] = page_json(month_spending(ledger, now, month=month, by=by))
        return told

    def compared(self, runs: str) -> dict[str, Any]:
        with self._beside_lock:
            return compare_json(self._beside.context, runs.split(","))

    def warm(self) -> None:
        """Load what a click needs, so that the first one waits no longer than others."""
        with suppress(TrmcloudError, OSError):
            home = self._act()
            for run in home.states()[-1:]:
                home.foresee(STOP, run.run_id)

    # -- clicking ----------------------------------------------------------------------------------

    def foreseen(self, run_id: str, verb: str, cap: str) -> dict[str, Any]:
        seen = self._act().foresee(verb, run_id, cap=_amount(cap))
        return shown.foreseen_json(seen, str(self._folder))

    def do(self, run_id: str, wish: dict[str, str]) -> dict[str, Any]:
        """Do what was agreed to, if it still costs no more dollars than the question named. The run
        is named by its id: its name may have become another's since the question."""
        verb, cap = wish.get("verb", ""), _amount(wish.get("cap", ""))
        home = self._act()
        try:
            seen = home.foresee(verb, run_id, cap=cap)
        except LedgerError:
            if verb != STOP:
                raise
            seen = Forecast(STOP, run_id)  # what is known of it is in the way of no end
        if seen.run != run_id:
            raise UsageError(f"name the run by its id: {run_id!r:.80} is the name of {seen.run}")
        if seen.refused:
            raise ConflictError(f"{run_id}: {seen.refused}")
        agreed = _amount(wish.get("agreed", "")) or Usd(0)
        if seen.at_most > agreed + _CENT:
            raise ConflictError(
                f"it would spend {seen.at_most} at most by now, and {agreed} was agreed to",
                next_step="look at the question again",
            )
        return {"job": self.jobs.start(verb, seen.run, partial(self._work, home, seen))}

    def _work(self, home: Home, seen: Forecast, progress: Progress) -> str:
        """Do what was agreed to; return what came of it."""
        run_id = seen.run
        match seen.verb:
            case "land":
                home.land(run_id)
                self._stay(home, run_id)
                return f"{run_id}: soft stop requested; it saves, then its pod ends"
            case "stop":
                told = home.stop(run_id).trouble
                self._stay(home, run_id)
                return told or f"{run_id}'s pod is being ended"
            case "save":
                return (
                    f"{run_id} has saved; the checkpoint is {shown.place_text(home.save(run_id))}"
                )
            case "fetch":
                into = None
                if not seen.rents:
                    best = find_best(home.context, run_by_id(home.context, run_id)).manifest
                    into = default_folder(best, self._folder)
                made = home.fetch_best(run_id, into=into, rent=bool(seen.rents), progress=progress)
                return f"{made.checkpoint} is in {made.folder}, verified: sha256 {made.sha256}"
        run = home.resume(run_id, cap=seen.cap)
        if run.live:
            self._stay(home, run_id)
            return f"{run_id} trains again, within {seen.cap} for the whole of it"
        ended = run.outcome.value if run.outcome is not None else run.state
        return f"{run_id} has ended again: {ended}"

    def _stay(self, home: Home, run_id: str) -> None:
        """Drive the run until it has ended, where no other process does, whether or not a page is
        open."""

        def stay() -> None:
            with suppress(TrmcloudError):
                home.wait(run_id)

        threading.Thread(target=stay, daemon=True).start()

    def raise_level(self, level: str, wish: dict[str, str]) -> dict[str, Any]:
        amount = _amount(wish.get("cap", ""))
        if amount is None:
            raise UsageError("name the new cap in dollars")
        line = self._act().raise_cap(level, amount)
        self.feed.tell("budgets", [shown.line_json(each) for each in self._act().budgets()])
        return shown.line_json(line)

    def answer(self, approval_id: str, wish: dict[str, str]) -> dict[str, Any]:
        """Approve or deny a principal's request."""
        home = self._act()
        match wish.get("answer", ""):
            case "approve":
                return shown.approval_json(home.approve(approval_id))
            case "deny":
                return shown.approval_json(home.deny(approval_id))
        raise UsageError("the answer to a request is approve or deny")


class Answer(JSONResponse):
    """JSON in which no token stands."""

    def render(self, content: Any) -> bytes:
        return mask_tokens(super().render(content).decode()).encode()


def application(page: Page) -> Starlette:
    """Return the ASGI application, to stand behind ``GuardedApp``."""

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        page.watch.start()
        threading.Thread(target=page.warm, daemon=True).start()
        try:
            yield
        finally:
            await run_in_threadpool(page.watch.end)

    usual, ending, questions = map(CapacityLimiter, (AT_ONCE, ENDS_AT_ONCE, QUESTIONS_AT_ONCE))

    async def in_thread(ask: Callable[..., Any], *about: Any, lane: CapacityLimiter = usual) -> Any:
        return await to_thread.run_sync(partial(ask, *about), limiter=lane)

    read = {name: (STATIC / name).read_bytes() for name in FILES}
    packed = {name: gzip.compress(content, mtime=0) for name, content in read.items()}
    # Their address says what they are, so that a browser reads them once for all pages.
    served = "/static/" + hashlib.sha256(b"".join(read.values())).hexdigest()[:16]
    shell = (STATIC / "index.html").read_text(encoding="utf-8").replace("/static", served)

    async def index(request: Request) -> Response:
        return HTMLResponse(shell)

    async def static(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in FILES:
            raise HTTPException(404, "Not Found")
        kept = f"private, max-age={_KEPT_S}, immutable"
        headers, content = {"Cache-Control": kept, "Vary": "Accept-Encoding"}, read[name]
        if "gzip" in request.headers.get("accept-encoding", ""):
            headers["Content-Encoding"], content = "gzip", packed[name]
        return Response(content, media_type=FILES[name], headers=headers)

    def route(
        path: str,
        ask: Callable[..., dict[str, Any]],
        *names: str,
        method: str = "GET",
        status: int = 200,
    ) -> Route:
        """Answer with the result of ``ask``, called with the path's parameters, with those of the
        query that are named, '' where one is left out, and with the body of a POST."""

        async def answer(request: Request) -> Response:
            asked = [request.query_params.get(name, "") for name in names]
            wish = [await _wish(request)] if method == "POST" else []
            ends = any(w.get("verb") in _ENDS or w.get("answer") == "deny" for w in wish)
            if is_spare(request.scope) and not ends:
                raise HTTPException(*BUSY)
            if ends:
                mark_ending(request.scope)
            lane = ending if ends else usual
            about = (*request.path_params.values(), *asked, *wish)
            return Answer(await in_thread(ask, *about, lane=lane), status)

        return Route(path, answer, methods=[method])

    async def stream(request: Request) -> Response:
        if page.feed.is_full:
            raise HTTPException(503, f"{MOST_STREAMS} pages are open: close one")
        listener = page.feed.listen(request.query_params.get("run", ""))

        async def messages() -> AsyncIterator[str]:
            try:
                async for message in listener.messages():
                    yield message
            finally:
                page.feed.leave(listener)

        return StreamingResponse(
            messages(), media_type="text/event-stream", headers={"X-Accel-Buffering": "no"}
        )

    async def foreseen(request: Request) -> Response:
        asked = request.query_params
        about = request.path_params["run"], asked.get("verb", ""), asked.get("cap", "")
        ends = about[1] in _ENDS
        if is_spare(request.scope) and not ends:
            raise HTTPException(*BUSY)
        lane = questions if ends else usual
        return Answer(await in_thread(page.foreseen, *about, lane=lane))

    return Starlette(
        routes=[
            Route("/", index),
            Route("/runs", index),
            Route("/run/{run}", index),
            Route("/spend", index),
            Route("/compare", index),
            Route(served + "/{name:path}", static),
            route("/api/runs", page.all_runs),
            route("/api/runs/{run}", page.one_run),
            route("/api/runs/{run}/curves", page.run_curves),
            route("/api/runs/{run}/log", page.run_log, "phase", "after"),
            route("/api/runs/{run}/machine", page.run_machine),
            route("/api/runs/{run}/launched", page.run_launched),
            Route("/api/runs/{run}/foreseen", foreseen),
            route("/api/runs/{run}/do", page.do, method="POST", status=202),
            route("/api/budgets/{level}", page.raise_level, method="POST"),
            route("/api/approvals/{approval}", page.answer, method="POST"),
            route("/api/spend", page.spent, "month", "by"),
            route("/api/compare", page.compared, "runs"),
            Route("/api/stream", stream),
        ],
        lifespan=lifespan,
        exception_handlers={
            TrmcloudError: _failed,
            HTTPException: _not_here,
            Exception: _unexpected,
        },
    )


def _amount(text: str) -> Usd | None:
    """
    Raises:
        UsageError: it is no amount above zero.
    """
    if text in ("", "0"):
        return None
    try:
        return parse_budget(text)
    except ValueError as error:
        raise UsageError(str(error)) from None


async def _wish(request: Request) -> dict[str, str]:
    try:
        within_s = SPARE_BODY_WITHIN_S if is_spare(request.scope) else BODY_WITHIN_S
        body = await read_body(request.stream(), MAX_BODY_BYTES, within_s)
    except BodyRefused as error:
        raise HTTPException(error.status, error.what, {"Connection": "close"}) from None
    except ClientDisconnect:
        raise HTTPException(400, "the client left before its body was here") from None
    try:
        wish = json.loads(body)
    except (ValueError, RecursionError):  # brackets in brackets, some thousands deep
        raise UsageError("that is no JSON") from None
    if not isinstance(wish, dict):
        raise UsageError("that is no JSON object")
    for key, value in wish.items():
        if not isinstance(value, str):
            raise UsageError(f"{key[:40]}: a text is needed")
    return wish


async def _failed(request: Request, error: Exception) -> Response:
    assert isinstance(error, TrmcloudError)
    status = next((code for kind, code in _STATUS.items() if isinstance(error, kind)), 502)
    told = {"error": one_line(str(error)), "next": one_line(error.next_step)}
    return Answer(told, status)


async def _not_here(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    text = f"{error.detail.lower()}: {request.method} {one_line(request.url.path)}"
    return Answer({"error": text}, error.status_code, error.headers)


async def _unexpected(request: Request, error: Exception) -> Response:
    """A fault of ours: it ends this request alone."""
    return Answer({"error": f"unexpected {type(error).__name__}; the page stays"}, 500)


_TOKEN_BYTES = 24
_LEAVE_WITHIN_S = 1


def page_of(home: Path | None, folder: Path, *, live: bool) -> Page:
    """``live``: what takes seconds to ask is asked about its pods, too."""
    left_alone = () if live else brokered()
    return Page(
        look=lambda: Home(home, unasked=rentable()),
        act=lambda: Home(home, unasked=left_alone),
        folder=folder,
        version=version("trmcloud"),
    )


def server(page: Page, token: str, host: str = LOOPBACK[0]) -> Any:
    """uvicorn's server of it, silent; ``run(sockets=[…])`` serves until it is told to end."""
    guarded = GuardedApp(application(page), token, names=names_of(host))
    return silent_server(guarded, leave_within_s=_LEAVE_WITHIN_S, ends=True)


def open_socket(host: str, port: int) -> socket.socket:
    """
    Raises:
        CannotListen: the port is taken, or there is no such address.
    """
    try:
        return listening(host, port)
    except OSError as error:
        raise CannotListen(host, port, error, next_step="--port with another, or 0") from None


def serve(
    home: Path | None, host: str, port: int, *, run_id: str, live: bool, as_json: bool = False
) -> None:
    """Until Ctrl-C, or SIGTERM. The address is printed, token and all, and nowhere else.

    Raises:
        CannotListen: the port is taken.
    """
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, signal.default_int_handler)
    with open_socket(host, port) as sock:
        token, page = secrets.token_urlsafe(_TOKEN_BYTES), page_of(home, Path.cwd(), live=live)
        made = server(page, token, host)
        shown = (
            f"[{host}]" if ":" in host else socket.gethostname() if host in ANY_ADDRESS else host
        )
        path = f"run/{run_id}" if run_id else ""
        address = f"http://{shown}:{sock.getsockname()[1]}/{path}#token={token}"
        if as_json:
            print_line(Serving(of="page", run=run_id or None, url=address, token=None))
        else:
            print(f"{address}\n(Ctrl-C ends the page; runs continue)", flush=True)
        with suppress(KeyboardInterrupt):
            made.run(sockets=[sock])
    print("ended", flush=True)
    # What a click began may still wait for its run, which goes on without it.
    os._exit(0)
