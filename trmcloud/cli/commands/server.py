"""``trmcloud server``: one process for a team, its people and their tokens, its audit log."""

from __future__ import annotations

import contextlib
import datetime as dt
import getpass
import importlib.util
import ipaddress
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer

from trmcloud.app.home import close_home, home_dir, make_home
from trmcloud.cli import documents as doc
from trmcloud.cli import options
from trmcloud.cli.commands.login import secret_from
from trmcloud.cli.views.json_output import as_object, code_of, print_document, print_line
from trmcloud.cli.views.text import table
from trmcloud.core.control.grants import largest_sum, raised
from trmcloud.core.errors import (
    ConflictError,
    LedgerDamaged,
    NotFoundError,
    UsageError,
)
from trmcloud.core.money import Usd, parse_budget
from trmcloud.core.text import one_line
from trmcloud.core.values import replace
from trmcloud.ports.team import Act, Person, Raise, Role, broken_at
from trmcloud.server.people import LOGIN_S, People
from trmcloud.server.sealed_secrets import (
    ENV_KEY,
    SealedSecrets,
    find_keys,
    names_of,
    new_key,
    unseal,
)
from trmcloud.wiring import ENV_PROJECT, build_context, build_team

app = options.make_group(
    "One process for a team: page, HTTP API, and a controller that drives all runs.",
    "trmcloud server run",
)

_EXTRA = ("starlette", "uvicorn")
_LEAVE_WITHIN_S = 5
_DAY_S = 86_400.0
_MOST_DAYS = 3650
_Name = Annotated[str, typer.Argument(help="Name of a person or service.", metavar="NAME")]
_KeyFile = Annotated[
    str,
    typer.Option(
        "--key-file",
        help="File with the key of the sealed secrets (default: systemd's credential trmcloud-key, "
        "or TRMCLOUD_SECRETS_KEY).",
        metavar="FILE",
    ),
]
_RaiseId = Annotated[str, typer.Argument(help="Its id, as server raises lists it.", metavar="ID")]


@app.command("run")
def run(
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", help="Port; 0: any free port.")] = 8750,
    name: Annotated[
        list[str] | None,
        typer.Option("--name", help="Name by which clients call it, repeatable.", metavar="HOST"),
    ] = None,
    four_eyes: Annotated[
        str,
        typer.Option(
            "--four-eyes",
            help="Caps and grants above this sum need a second lead (default: none do).",
            metavar="USD",
        ),
    ] = "",
    administrator: Annotated[
        str,
        typer.Option(
            "--administrator",
            help="Where there are no people yet: add this one, and show its token once.",
            metavar="NAME",
        ),
    ] = "",
    local_commands: Annotated[
        bool,
        typer.Option(
            "--local-commands",
            help="Run members' own commands on this machine, too, beside the provider keys.",
        ),
    ] = False,
    trust_proxy: Annotated[
        str,
        typer.Option(
            "--trust-proxy",
            help="Header in which a reverse proxy names the person that it has checked.",
            metavar="HEADER",
        ),
    ] = "",
    proxy_address: Annotated[
        list[str] | None,
        typer.Option(
            "--proxy-address",
            help="Network that the proxy connects from, repeatable.",
            metavar="CIDR",
        ),
    ] = None,
    public_url: Annotated[
        str,
        typer.Option(
            "--public-url", help="Address of the server as browsers reach it.", metavar="URL"
        ),
    ] = "",
    oidc: Annotated[
        str,
        typer.Option(
            "--oidc",
            help="Issuer of an OpenID Connect provider at which people log in.",
            metavar="ISSUER",
        ),
    ] = "",
    oidc_client: Annotated[
        str,
        typer.Option("--oidc-client", help="This server's client id there.", metavar="ID"),
    ] = "",
    oidc_domain: Annotated[
        list[str] | None,
        typer.Option(
            "--oidc-domain",
            help="Domain of email addresses that are added as viewers, repeatable.",
            metavar="DOMAIN",
        ),
    ] = None,
    oidc_role: Annotated[
        list[str] | None,
        typer.Option(
            "--oidc-role",
            help="Role of a group there, repeatable; the rest are viewers.",
            metavar="ROLE=GROUP",
        ),
    ] = None,
    key_file: _KeyFile = "",
    prices: Annotated[
        bool, typer.Option("--prices/--no-prices", help="Refresh prices once a day.")
    ] = True,
    as_json: options.Json = False,
) -> None:
    """Serve a team until SIGTERM or Ctrl-C; runs continue.

    Keys of providers are needed only on this machine. With TRMCLOUD_LEDGER, several
    servers share one ledger in PostgreSQL, and one of them drives each run.

    Example: trmcloud server run --administrator ada --four-eyes 500
    """
    options.require_packages(_EXTRA, "server", "server")
    from trmcloud.cli.page.server import application, open_socket, page_of, with_page_headers
    from trmcloud.io.web_guard import LOOPBACK, AllowedHosts, names_of
    from trmcloud.io.web_server import silent_server
    from trmcloud.server.app import Doors, Settings, TeamServer, TrustedProxy
    from trmcloud.server.loop import ENV_OIDC_SECRET, ControllerLoop, environment_of_server
    from trmcloud.server.openid_provider import require_safe
    from trmcloud.server.running import CommandRunner

    proxy = None
    if trust_proxy:
        if not proxy_address:
            raise UsageError(
                "--trust-proxy needs the proxy's network: any client could send the header",
                next_step="--proxy-address 127.0.0.1/32",
            )
        proxy = TrustedProxy(trust_proxy.lower(), tuple(map(_network, proxy_address)))
    elif proxy_address:
        raise UsageError("--proxy-address goes with --trust-proxy HEADER")
    if public_url:
        require_safe(public_url, "--public-url")
    if not oidc and (oidc_client or oidc_domain or oidc_role):
        raise UsageError("--oidc-client, --oidc-domain and --oidc-role go with --oidc ISSUER")
    limit = _usd("--four-eyes", four_eyes) if four_eyes else None
    close_home(os.environ)
    home = home_dir(os.environ)
    make_home(home)
    sealed = _unsealed(home, key_file)
    os.environ.update(sealed)
    build_context().ledger.read()  # a ledger that cannot be used is told before anything is served
    people = People(build_team(), time.time)
    first_token = None
    if not people.team.people():
        if not administrator:
            raise NotFoundError(
                "there are no people yet", next_step="trmcloud server run --administrator NAME"
            )
        people.add(administrator, Role.ADMINISTRATOR)
        made, first_token = people.make_token(administrator, lasts_s=LOGIN_S, about="first")
        _note(people, f"server run --administrator {administrator}", token=made.id)
    for told in (signal.SIGINT, signal.SIGTERM):
        signal.signal(told, signal.default_int_handler)
    folder = home / "server"
    folder.mkdir(mode=0o700, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix="commands-", dir=folder))
    environment = environment_of_server()
    page = page_of(None, home, live=False)

    def tell(line: str) -> None:
        print(one_line(f"controller: {line}"), file=sys.stderr, flush=True)

    from trmcloud.api import Home
    from trmcloud.cli.catch_up import tell as send_notifications
    from trmcloud.cli.main import parse_line

    def open_home() -> Home:
        made = Home()
        send_notifications(made.context)
        return made

    agents = _Agents(home, folder)
    loop = ControllerLoop(open_home, folder, environment, tell, prices=prices)

    @contextlib.asynccontextmanager
    async def lifespan(served: Any) -> AsyncIterator[None]:
        page.watch.start()
        loop.start()
        try:
            async with agents.serving():
                yield
        finally:
            loop.end()
            page.watch.end()

    names = names_of(host)
    openid = None
    if oidc:
        rules = _login_rules(oidc_domain or (), oidc_role or ())
        openid = _openid(people, oidc, oidc_client, rules, public_url)
    public = {urlsplit(public_url).hostname or ""} - {""}
    more = frozenset(each.lower() for each in (*(name or ()), *public))
    settings = Settings(
        names=AllowedHosts(names.more | more, names.any_address),
        project=os.environ.get(ENV_PROJECT, "default"),
        four_eyes=limit,
        local_commands=local_commands,
        proxy=proxy,
    )
    doors = Doors(
        parse=parse_line,
        runs=_known_runs,
        page=with_page_headers(application(page, of_team=True)),
        spending=_spending,
        mcp=agents.app,
        code_of=code_of,
        request_usd=_request_usd,
    )
    own = os.environ.get(ENV_OIDC_SECRET, "")
    runner = CommandRunner(
        scratch, environment, time.monotonic, [*sealed.values(), *([own] if own else [])]
    )
    server = TeamServer(people, runner, settings,
                        doors, lifespan, openid)  # fmt: skip
    agents.server = server
    with open_socket(host, port) as sock:
        shown = f"[{host}]" if ":" in host else host
        url = f"http://{shown}:{sock.getsockname()[1]}"
        if as_json:
            print_line(doc.Serving(of="server", run=None, url=url, token=first_token))
        else:
            if first_token is not None:
                print(f"{first_token}\n(the token of {administrator}, shown once)")
            print(f"{url}\n(Ctrl-C ends the server; runs continue)", flush=True)
        if host not in LOOPBACK:
            options.warn_if_exposed(host, "tokens need a reverse proxy with TLS in front")
        with suppress(KeyboardInterrupt):
            silent_server(server, leave_within_s=_LEAVE_WITHIN_S).run(sockets=[sock])
    shutil.rmtree(scratch, ignore_errors=True)
    print("ended", file=sys.stderr if as_json else sys.stdout, flush=True)
    os._exit(0)


def _login_rules(domains: Sequence[str], roles: Sequence[str]) -> Any:
    """
    Raises:
        UsageError: no such role.
    """
    from trmcloud.server.openid_login import LoginRules

    by_group: dict[str, Role] = {}
    for each in roles:
        role, _, group = each.partition("=")
        if role not in list(Role) or not group:
            raise UsageError(
                f"--oidc-role {each[:60]!r} is no role of a group",
                next_step="--oidc-role lead=ml-leads",
            )
        before = by_group.get(group, Role.VIEWER)
        by_group[group] = max(Role(role), before, key=lambda one: one.rank)
    return LoginRules(frozenset(each.lower().lstrip("@") for each in domains), by_group)


def _openid(people: People, issuer: str, client: str, rules: Any, public_url: str) -> Any:
    """
    Raises:
        UsageError: an address or the client's id is missing. ConfigError: so is a package.
    """
    options.require_packages(("joserfc",), "server", "server")
    from trmcloud.server.loop import ENV_OIDC_SECRET
    from trmcloud.server.openid_login import CALLBACK, OpenIdLogin
    from trmcloud.server.openid_provider import Client, OpenIdProvider

    if not client or not public_url:
        raise UsageError(
            "--oidc needs this server's client id and the address that browsers use",
            next_step="--oidc-client ID --public-url https://trmcloud.example.com",
        )
    url = public_url.rstrip("/")
    secret = os.environ.get(ENV_OIDC_SECRET, "")
    me = Client(issuer, client, secret, f"{url}{CALLBACK}")
    return OpenIdLogin(people, OpenIdProvider(me, time.time), rules, url)


def _known_runs() -> Sequence[Any]:
    from trmcloud.server.rights import KnownRun

    return [
        KnownRun(
            run.run_id,
            run.name,
            run.project,
            tuple(filter(None, (run.creator, run.principal))),
            run.live,
            run.created_at,
            run.cap,
            run.settled,
        )
        for run in build_context().ledger.read().runs.values()
    ]


class _Agents:
    """The tools for agents at ``/mcp``. ``app`` is None where their packages are missing."""

    def __init__(self, home: Path, folder: Path) -> None:
        self.app: Any = None
        self.server: Any = None
        if importlib.util.find_spec("mcp") is None:
            return
        from trmcloud.mcp.server import Gate, desk_of, mounted_app
        from trmcloud.server.app import SESSION

        # An agent's files are at its client: each name is looked up in a folder that stays empty.
        empty = folder / "agents"
        empty.mkdir(mode=0o700, exist_ok=True)
        desk = desk_of(home, "", empty, "")

        def desk_for(request: Any) -> Any:
            person = request.scope[SESSION].person
            return replace(desk, grant=person.name, charged_to=self.server.project_of(person))

        def gate_for(request: Any) -> Gate:
            session = request.scope[SESSION]
            return Gate(
                partial(self.server.judge_tool, session), partial(self.server.note_tool, session)
            )

        self.app = mounted_app(desk_for, gate_for)

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        if self.app is None:
            yield
            return
        async with self.app.router.lifespan_context(self.app):
            yield


def _spending(visitor: Any, month: str, by: str) -> Mapping[str, Any]:
    from trmcloud.cli.page.spend import spend_document

    context = build_context()
    made = spend_document(
        context.ledger.read(), context.wall(), month=month, by=by,
        projects=visitor.projects, raises=visitor.raises,
    )  # fmt: skip
    return as_object(made)


def _request_usd(request: str) -> Usd | None:
    """The largest amount that a grant would name once a principal's request is approved."""
    ledger = build_context().ledger.read()
    asked = ledger.approvals.get(request)
    grant = ledger.grants.get(asked.asked.principal) if asked is not None else None
    if asked is None or grant is None:
        return None
    return largest_sum(raised(grant.terms, asked.asked))


def _network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    try:
        return ipaddress.ip_network(text)
    except ValueError:
        raise UsageError(
            f"--proxy-address {text[:60]!r} is no network", next_step="--proxy-address 10.0.0.0/8"
        ) from None


def _usd(flag: str, text: str) -> Usd:
    try:
        return parse_budget(text)
    except ValueError as error:
        raise UsageError(f"{flag}: {error}", next_step=f"{flag} 500") from None


# -- people ----------------------------------------------------------------------------------------


@app.command("add")
def add(
    name: _Name,
    role: Annotated[
        str, typer.Option("--role", help="viewer, member, lead or administrator.")
    ] = "viewer",
    project: Annotated[
        list[str] | None,
        typer.Option("--project", help="Only this project, repeatable (default: all)."),
    ] = None,
    password_from: Annotated[
        str,
        typer.Option("--password-from", help="File with a password; - : stdin.", metavar="FILE"),
    ] = "",
    is_service: Annotated[
        bool, typer.Option("--service", help="A service, such as a CI job: no password.")
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Add a person or a service, or change its role and projects. Money comes by a grant.

    Example: trmcloud server add ada --role member --password-from ada.txt
    """
    try:
        wanted = Role(role)
    except ValueError:
        raise UsageError(f"--role must be one of {', '.join(Role)}, not {role[:40]!r}") from None
    if is_service and (password_from or not Role.MEMBER.includes(wanted)):
        raise UsageError(
            "a service has a token, no password, and is viewer or member",
            next_step=f"trmcloud server add {name} --service --role member",
        )
    password = secret_from(password_from, "password") if password_from else None
    people = _people()
    made = people.add(
        name, wanted, projects=tuple(project or ()), password=password, is_service=is_service
    )
    _note(people, f"server add {name} --role {role}", projects=list(made.projects))
    if as_json:
        print_document(_person_document(made))
        return
    print(f"{made.name}: {made.role.value} of {', '.join(made.projects) or 'all projects'}")


@app.command("remove")
def remove(name: _Name, as_json: options.Json = False) -> None:
    """Disable a person at once, with all tokens; runs and records stay.

    Example: trmcloud server remove ada
    """
    people = _people()
    made = people.disable(name)
    _note(people, f"server remove {name}")
    if as_json:
        print_document(_person_document(made))
        return
    print(f"{name} is disabled, and all tokens of {name} are revoked")
    print(f"  its runs continue: trmcloud grant revoke {name} lands them")


@app.command("people")
def list_people(as_json: options.Json = False) -> None:
    """List people and services, with their roles and valid tokens.

    Example: trmcloud server people
    """
    people = _people()
    found, now = people.team.people(), time.time()
    valid = [token for token in people.team.tokens() if token.is_valid(now)]
    if as_json:
        rows = tuple(_person_document(each) for each in found)
        tokens = tuple(
            doc.TokenRow(
                token=each.id, person=each.person, about=each.about,
                made_at=each.made_at, expires_at=each.expires_at,
            )
            for each in valid
        )  # fmt: skip
        print_document(doc.ServerPeople(people=rows, tokens=tokens))
        return
    if not found:
        print("no people yet · trmcloud server add NAME --role administrator")
        return
    lines = [("name", "role", "projects", "tokens")]
    for each in found:
        mine = ", ".join(token.id for token in valid if token.person == each.name)
        role = "disabled" if each.disabled_at is not None else each.role.value
        lines.append((each.name, role, ", ".join(each.projects) or "all", mine or "–"))
    print("\n".join(table(lines[0], lines[1:])))


@app.command("token")
def token(
    name: _Name,
    days: Annotated[
        int, typer.Option("--days", min=1, max=_MOST_DAYS, help="Days for which it is valid.")
    ] = 90,
    about: Annotated[str, typer.Option("--about", help="What it is for.")] = "",
    as_json: options.Json = False,
) -> None:
    """Make a token for a person or service. It is shown once and stored hashed.

    Example: trmcloud server token ci --about nightly
    """
    people = _people()
    made, shown = people.make_token(name, lasts_s=days * _DAY_S, about=about)
    _note(people, f"server token {name}", token=made.id)
    if as_json:
        print_document(
            doc.TokenMade(token=made.id, person=name, secret=shown, expires_at=made.expires_at)
        )
        return
    print(shown)
    print(f"  {made.id}, of {name}, for {days} days; it is not shown again", file=sys.stderr)


@app.command("revoke")
def revoke(
    name: Annotated[
        str, typer.Argument(help="Id of a token, or a person: all tokens.", metavar="TOKEN")
    ],
    as_json: options.Json = False,
) -> None:
    """Revoke a token, or all tokens of a person, at once.

    Example: trmcloud server revoke 1f3a9c04
    """
    people = _people()
    count = people.revoke(name)
    _note(people, f"server revoke {name}", tokens=count)
    if as_json:
        print_document(doc.TokensRevoked(of=name, tokens=count))
        return
    print(f"{name}: {count} token{'' if count == 1 else 's'} revoked")


# -- secrets ---------------------------------------------------------------------------------------


@app.command("key")
def key(as_json: options.Json = False) -> None:
    """Print a new key for sealed secrets. Keep it outside of the home.

    Example: trmcloud server key > /etc/trmcloud.key
    """
    made = new_key()
    if as_json:
        print_document(doc.KeyMade(key=made))
        return
    print(made)


@app.command("secret")
def secret(
    name: Annotated[
        str, typer.Argument(help="Name of the variable, as RUNPOD_API_KEY.", metavar="NAME")
    ],
    source: Annotated[
        str, typer.Option("--from", help="File with its value; - : stdin.", metavar="FILE")
    ] = "",
    remove: Annotated[bool, typer.Option("--remove", help="Remove it.")] = False,
    key_file: _KeyFile = "",
    as_json: options.Json = False,
) -> None:
    """Seal a secret of the server: it is encrypted here, and only the server has it as a variable.

    Example: trmcloud server secret RUNPOD_API_KEY --from - --key-file /etc/trmcloud.key
    """
    if bool(source) == remove:
        raise UsageError(
            "give either --from FILE or --remove",
            next_step=f"trmcloud server secret {one_line(name)[:64]} --from FILE",
        )
    home, sealed = _sealed(key_file)
    if remove:
        sealed.remove(name)
    else:
        sealed.put(name, secret_from(source, "secret"))
    _note(_people(), f"server secret {name}{' --remove' if remove else ''}")
    _show_secrets(home, as_json=as_json)


@app.command("secrets")
def secrets(
    rotate: Annotated[
        bool, typer.Option("--rotate", help="Seal all of them by the first key of the file.")
    ] = False,
    key_file: _KeyFile = "",
    as_json: options.Json = False,
) -> None:
    """List the names of sealed secrets. Values are never shown.

    Example: trmcloud server secrets
    """
    home = home_dir(os.environ)
    if rotate:
        home, sealed = _sealed(key_file)
        count = sealed.rotate()
        _note(_people(), "server secrets --rotate", secrets=count)
    _show_secrets(home, as_json=as_json)


def _sealed(key_file: str) -> tuple[Path, SealedSecrets]:
    options.require_packages(("cryptography",), "sealed secrets", "server")
    close_home(os.environ)
    home = home_dir(os.environ)
    make_home(home)
    return home, SealedSecrets(home, find_keys(home, key_file, os.environ))


def _unsealed(home: Path, key_file: str) -> Mapping[str, str]:
    """The sealed secrets of the home. The key does not stay among this process's variables."""
    if names_of(home):
        options.require_packages(("cryptography",), "sealed secrets", "server")
    keys = find_keys(home, key_file, os.environ)
    os.environ.pop(ENV_KEY, None)
    return unseal(home, keys, os.environ)


def _show_secrets(home: Path, *, as_json: bool) -> None:
    names = names_of(home)
    if as_json:
        print_document(doc.SealedNames(names=names))
        return
    print("\n".join(names) or "no secret is sealed · trmcloud server secret NAME --from FILE")


# -- audit, and what waits for a second person -----------------------------------------------------


@app.command("audit")
def audit(
    after: Annotated[int, typer.Option("--after", help="Only records after this number.")] = 0,
    as_json: options.Json = False,
) -> None:
    """Show who did what, and which runs and dollars came of it; check the log's hashes.

    Example: trmcloud server audit
    """
    records = _people().team.acts()
    broken = broken_at(records)
    shown = [record for record in records if record.seq > after]
    if as_json:
        rows = tuple(
            doc.AuditRow(
                seq=each.seq, acted_at=each.act.at, person=each.act.person, role=each.act.role,
                token=each.act.token or None, address=each.act.address or None,
                command=each.act.what, decision=each.act.decision, facts=each.act.facts,
                sha256=each.chain,
            )
            for each in shown
        )  # fmt: skip
        print_document(doc.AuditLog(whole=broken is None, records=rows))
    else:
        lines = [("#", "when", "who", "what", "decision", "dollars")]
        for each in shown:
            act = each.act
            lines.append(
                (
                    str(each.seq), _moment(act.at), f"{act.person} ({act.role})",
                    one_line(act.what)[:60], _decision(act), _dollars(act),
                )
            )  # fmt: skip
        print("\n".join(table(lines[0], lines[1:])))
    if broken is not None:
        raise LedgerDamaged(
            f"record {broken} of the audit log does not follow from those before it",
            next_step="compare it with a backup of the database",
        )


def _moment(at: float) -> str:
    return dt.datetime.fromtimestamp(at, dt.timezone.utc).strftime("%Y-%m-%d %H:%M:%S")


def _decision(act: Act) -> str:
    code = act.facts.get("exit_code")
    return f"exit {code}" if act.decision == "done" and code is not None else act.decision


def _dollars(act: Act) -> str:
    runs = act.facts.get("runs") or {}
    return ", ".join(f"{run} {_of_cap(row)}" for run, row in runs.items()) or "–"


@app.command("raises")
def raises(as_json: options.Json = False) -> None:
    """List caps and grants that wait for a second lead.

    Example: trmcloud server raises
    """
    waiting = [each for each in _people().team.raises() if each.answered_at is None]
    if as_json:
        print_document(doc.Raises(raises=tuple(map(_raise_document, waiting))))
        return
    if not waiting:
        print("nothing waits")
        return
    lines = [("id", "asked by", "USD", "command")]
    lines += [(each.id, each.asked_by, each.usd, " ".join(each.words)) for each in waiting]
    print("\n".join(table(lines[0], lines[1:])))


@app.command("approve")
def approve(raise_id: _RaiseId, as_json: options.Json = False) -> None:
    """Agree to a cap or grant that another lead has asked for; it is set at once.

    Example: trmcloud server approve c-1f3a9c04
    """
    one = _answer(raise_id, approved=True)
    code = subprocess.run(
        [sys.executable, "-m", "trmcloud", *one.words],
        env={**os.environ, "TRMCLOUD_AT_SERVER": "1"},
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr.fileno() if as_json else None,
        check=False,
    ).returncode
    if as_json:
        print_document(_raise_document(one))
    sys.exit(code)


@app.command("deny")
def deny(raise_id: _RaiseId, as_json: options.Json = False) -> None:
    """Deny a cap or grant that another lead has asked for.

    Example: trmcloud server deny c-1f3a9c04
    """
    one = _answer(raise_id, approved=False)
    if as_json:
        print_document(_raise_document(one))
        return
    print(f"{one.id}: denied")


def _answer(raise_id: str, *, approved: bool) -> Raise:
    people, me = _people(), getpass.getuser()
    one = next((each for each in people.team.raises() if each.id == raise_id), None)
    if one is None:
        raise NotFoundError(
            f"nothing waits as {raise_id[:40]!r}", next_step="trmcloud server raises"
        )
    if one.asked_by == me and approved:
        raise ConflictError(
            f"{me} has asked for it: another lead has to agree", next_step="trmcloud server raises"
        )
    if not people.team.answer_raise(raise_id, me, time.time(), approved=approved):
        raise ConflictError(f"{raise_id} was answered before", next_step="trmcloud server raises")
    _note(people, " ".join(one.words), decision="approved" if approved else "denied",
          raise_id=raise_id, asked_by=one.asked_by)  # fmt: skip
    answered = next(each for each in people.team.raises() if each.id == raise_id)
    return answered


def _of_cap(row: Mapping[str, str]) -> str:
    return f"{Usd(row['settled_usd'])} of {Usd(row['cap_usd'])}"


# -- own -------------------------------------------------------------------------------------------


def _people() -> People:
    return People(build_team(), time.time)


def _note(people: People, what: str, decision: str = "done", **facts: Any) -> None:
    """Write what is done on this machine into the audit log. What is done for a person through the
    server stands there under its token, too."""
    me = getpass.getuser()
    known = people.team.person(me)
    role = known.role.value if known is not None else "owner"
    people.team.add_act(Act(time.time(), me, role, "", "", what, decision, facts))


def _person_document(person: Person) -> doc.ServerPerson:
    return doc.ServerPerson(
        person=person.name,
        role=person.role.value,
        projects=person.projects,
        is_service=person.is_service,
        made_at=person.made_at,
        disabled_at=person.disabled_at,
    )


def _raise_document(one: Raise) -> doc.RaiseRow:
    return doc.RaiseRow(
        id=one.id,
        asked_by=one.asked_by,
        asked_at=one.asked_at,
        amount_usd=parse_budget(one.usd),
        command=" ".join(one.words),
        answered_by=one.answered_by or None,
        answered_at=one.answered_at,
        approved=one.approved if one.answered_at is not None else None,
    )
