"""Each command, option and endpoint against each role: generated from the commands themselves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from trmcloud.cli.main import COMMANDS as TYPED
from trmcloud.cli.main import load_command
from trmcloud.cli.main import parse_line as parse
from trmcloud.core.errors import AccessDenied, NotFoundError, TrmcloudError, UsageError
from trmcloud.core.money import Usd
from trmcloud.ports.team import Person, Role
from trmcloud.server.rights import (
    COMMANDS,
    ENDPOINTS,
    PAGE_ENDPOINTS,
    PAGE_OF_PROJECTS,
    Given,
    Kind,
    KnownRun,
    Parsed,
    Where,
    Whose,
    check_input,
    judge,
    kind_of,
    page_role,
    require_page,
    rule_of,
    sends_tree,
    with_value,
)

MINE = KnownRun("r-000001", "", "vision", ("bob",), True, 1.0)
THEIRS = KnownRun("r-000002", "hers", "vision", ("ada",), True, 2.0)
ELSEWHERE = KnownRun("r-000003", "", "audio", ("eve",), True, 3.0)
RUNS = (MINE, THEIRS, ELSEWHERE)
#: Paths of a server, and of its neighbours, in all the forms that an option could take them.
PATHS = (
    "/etc/passwd", "~/.runpod/config.toml", "../secret", "a/../../b", "..", "./x", "~", "/",
    "sub/file", "file:///etc/passwd", "x=/etc/passwd", "\\\\host\\share", "a\0b",
)  # fmt: skip


def _below(words: str, command: Any) -> Iterator[tuple[str, Any]]:
    children = getattr(command, "commands", None)
    if not children or getattr(command, "invoke_without_command", False):
        yield words, command
    for name, each in (children or {}).items():
        yield from _below(f"{words} {name}", each)


EVERY = {words: command for name in TYPED for words, command in _below(name, load_command(name))}
PARAMETERS = [
    (words, param.name, bool(getattr(param, "is_flag", False)))
    for words, command in EVERY.items()
    for param in command.params
    if param.name != "help" and rule_of(words).where is Where.REMOTE
]


def person(role: Role, name: str = "bob", projects: tuple[str, ...] = ()) -> Person:
    return Person(name, role, projects)


def no_runs() -> tuple[KnownRun, ...]:
    return RUNS


@pytest.mark.parametrize("words", sorted(EVERY))
def test_each_command_has_a_rule_of_its_own(words: str) -> None:
    assert words in COMMANDS


@pytest.mark.parametrize("role", list(Role))
@pytest.mark.parametrize("words", sorted(EVERY))
def test_a_command_is_run_for_its_role_and_those_above_it_alone(words: str, role: Role) -> None:
    rule = rule_of(words)
    parsed = Parsed(words, ())
    may = rule.where is Where.REMOTE and role.includes(rule.role)
    if may:
        assert judge(person(role), words.split(), parsed, no_runs).rule == rule
    else:
        with pytest.raises(AccessDenied) as refused:
            judge(person(role), words.split(), parsed, no_runs)
        assert refused.value.next_step
        assert "\n" not in str(refused.value)


def test_the_roles_of_what_spends_steers_and_administers() -> None:
    """Held to the words of the guide, beside the table."""
    assert {w for w, r in COMMANDS.items() if r.spends} == {"launch", "run", "sweep", "resume"}
    assert all(COMMANDS[w].role is Role.MEMBER for w in ("launch", "run", "sweep", "stop"))
    raising = ("budget set", "budget raise", "grant give", "grant raise")
    assert all(COMMANDS[w].role is Role.LEAD and COMMANDS[w].usd for w in raising)
    administering = ("server add", "server remove", "server token", "server revoke")
    assert all(COMMANDS[w].role is Role.ADMINISTRATOR for w in administering)
    assert {w for w, r in COMMANDS.items() if r.whose is Whose.OWN} == {
        "attach", "save", "stop", "resume", "prune",
    }  # fmt: skip


@pytest.mark.parametrize(("words", "name", "is_flag"), PARAMETERS)
def test_no_option_names_a_path_of_the_server(words: str, name: str, is_flag: bool) -> None:
    kind = kind_of(words, name)
    if is_flag:
        assert kind in (Kind.FLAG, Kind.REFUSED)
        return
    assert kind is not Kind.FLAG, "a value would not be looked at"
    for path in PATHS:
        given = Parsed(words, (Given(name, f"--{name}", (path,)),))
        if (words, name) == ("sweep", "words") and "=" in path:
            with pytest.raises(UsageError):  # a setting's value, which a recipe reads
                judge(person(Role.ADMINISTRATOR), words.split(), given, no_runs)
            continue
        if kind is Kind.TEXT and "\0" not in path:
            assert (words, name) in {
                (command, each)
                for command in ("run", "sweep")
                for each in ("words", "checkpoints", "metric", "resume")
            } | {("grant ask", "why")}, "text reaches a rented machine alone"
            continue
        if kind in (Kind.INSIDE, Kind.IMAGE) and path == "sub/file":
            continue  # a file that was sent; an image of a registry
        if kind is Kind.REPOSITORY and path == "sub/file":
            assert (words, name) == ("plan", "hf")
            continue
        with pytest.raises((UsageError, NotFoundError, AccessDenied)):
            judge(person(Role.ADMINISTRATOR), words.split(), given, no_runs)


@pytest.mark.parametrize("words", sorted(w for w, r in COMMANDS.items() if r.whose is Whose.OWN))
def test_a_member_steers_its_own_runs_alone(words: str) -> None:
    def ask(who: Person, run: str) -> tuple[str, ...]:
        given = (Given("run", "RUN", (run,)),) if run else ()
        parsed = Parsed(words, given, takes_run=True, wants_live=True)
        return judge(who, (words, run) if run else (words,), parsed, no_runs).words

    member, lead = person(Role.MEMBER), person(Role.LEAD, "ada")
    assert ask(member, MINE.run_id) == (words, MINE.run_id)
    assert ask(member, "") == (words, MINE.run_id), "the newest of its own is meant"
    for guessed in (THEIRS.run_id, THEIRS.name, ELSEWHERE.run_id):
        with pytest.raises(AccessDenied, match="another person's run"):
            ask(member, guessed)
        assert ask(lead, guessed) == (words, guessed)
    with pytest.raises(NotFoundError):
        ask(member, "r-ffffff")


@pytest.mark.parametrize("role", list(Role))
def test_runs_of_other_projects_are_as_if_they_were_not_there(role: Role) -> None:
    who = person(role, "bob", ("vision",))
    for words in ("status", "logs", "report", "fetch-best"):
        told = []
        for run in (ELSEWHERE.run_id, "r-ffffff"):
            parsed = Parsed(words, (Given("run", "RUN", (run,)),), takes_run=True)
            with pytest.raises(NotFoundError) as refused:
                judge(who, (words, run), parsed, no_runs)
            told.append(str(refused.value).replace(run, "RUN"))
        assert told[0] == told[1], "an id that is guessed gives nothing away"
    with pytest.raises(AccessDenied):
        judge(who, ("report", "--month"), parse(["report", "--month"]), no_runs)


@pytest.mark.parametrize("role", [Role.LEAD, Role.ADMINISTRATOR])
@pytest.mark.parametrize(
    "words",
    sorted(
        w for w, r in COMMANDS.items() if r.role.includes(Role.LEAD) and r.where is Where.REMOTE
    ),
)
def test_a_lead_of_one_project_decides_about_no_other(words: str, role: Role) -> None:
    who = person(role, "bob", ("vision",))
    with pytest.raises(AccessDenied):
        judge(who, words.split(), Parsed(words, ()), no_runs)
    if not words.startswith("budget "):
        return
    for typed, may in (
        (["project", "9"], True),  # the project that its commands run in: its own
        (["project", "9", "--for", "vision"], True),
        (["project-month", "9", "--for=vision 2026-12"], True),
        (["project", "9", "--for", "audio"], False),
        (["project-month", "9", "--for", "audio 2026-12"], False),
        (["account", "9"], False),
        (["month", "9", "--for", "vision"], False),
    ):
        line = [*words.split(), *typed]
        if may:
            assert judge(who, line, parse(line), no_runs).rule.role is Role.LEAD
        else:
            with pytest.raises(AccessDenied):
                judge(who, line, parse(line), no_runs)


def test_a_disabled_person_may_do_nothing() -> None:
    gone = Person("bob", Role.ADMINISTRATOR, disabled_at=1.0)
    with pytest.raises(AccessDenied):
        judge(gone, ("status",), Parsed("status", ()), no_runs)


def test_above_the_sum_a_second_person_is_needed() -> None:
    lead = person(Role.LEAD)
    for typed, waits in (("100", False), ("100.01", True), ("$1,000", True)):
        words = ["budget", "raise", "month", typed]
        found = judge(lead, words, parse(words), no_runs, four_eyes=Usd("100"))
        assert (found.second_person is not None) is waits
    grant = ["grant", "raise", "bob"]
    for amounts, waits in (
        (["50", "--per-month", "100"], False),
        (["50", "--per-month", "101"], True),
        (["--per-month=101"], True),
        (["50", "--per-day", "$101"], True),
        (["50", "--per-run=1e3"], True),
        (["101"], True),
    ):
        words = [*grant, *amounts]
        found = judge(lead, words, parse(words), no_runs, four_eyes=Usd("100"))
        assert (found.second_person is not None) is waits, amounts
    words = ["budget", "raise", "project-month", "101", "--for", "vision 2026-12"]
    assert judge(lead, words, parse(words), no_runs, four_eyes=Usd("100")).second_person
    words = ["budget", "raise", "month", "9999"]
    assert judge(lead, words, parse(words), no_runs).second_person is None


def test_a_request_that_makes_a_grant_too_large_needs_a_second_person_too() -> None:
    lead, words = person(Role.LEAD), ["approve", "a-1f2e3d4c"]
    sums = {"a-1f2e3d4c": Usd("100.01"), "a-00000000": Usd("100")}
    for request, waits in ((words[1], True), ("a-00000000", False), ("a-ffffffff", False)):
        line = ["approve", request]
        found = judge(lead, line, parse(line), no_runs, four_eyes=Usd("100"), request_usd=sums.get)
        assert (found.second_person is not None) is waits


@pytest.mark.parametrize("here", ["local", "LOCAL", "Local"])
def test_commands_of_members_stay_off_the_servers_machine(here: str) -> None:
    words = ["run", here, "--rate", "1", "--budget", "1", "--", "python", "x.py"]
    with pytest.raises(AccessDenied, match="beside its keys"):
        judge(person(Role.LEAD), words, parse(words), no_runs)
    assert judge(person(Role.MEMBER), words, parse(words), no_runs, local_commands=True).principal


@pytest.mark.parametrize("command", ["run", "sweep"])
@pytest.mark.parametrize("local_commands", [False, True])
def test_a_tree_goes_with_a_command_alone(command: str, local_commands: bool) -> None:
    """A sweep of a recipe takes no files: one of them could be read as a recipe."""
    typed = ["local", "--rate", "1", "--budget", "1"]
    of_command = parse([command, *typed, "--metric", "m", "lr=1,2", "--", "python", "x.py", "{lr}"])
    assert sends_tree(of_command)
    of_recipe = parse(["sweep", *typed, "--recipe", "shakespeare", "lr=log:1e-3,1e-1"])
    assert not sends_tree(of_recipe)
    assert not sends_tree(parse(["launch", "local", "--budget", "1"]))
    who, words = person(Role.MEMBER), (command, *typed)
    if command == "sweep":
        assert not judge(who, words, of_recipe, no_runs).takes_tree
        assert judge(who, words, of_recipe, no_runs).principal == "bob"
    if local_commands:
        assert judge(who, words, of_command, no_runs, local_commands=True).takes_tree
        return
    with pytest.raises(AccessDenied, match="beside its keys"):
        judge(who, words, of_command, no_runs)


def test_a_space_that_is_sent_names_no_path_to_a_recipe() -> None:
    typed = ["--budget", "1", "--space", "input-1"]
    words = ["sweep", "any", *typed, "--recipe", "shakespeare"]
    allowed = judge(person(Role.MEMBER), words, parse(words), no_runs)
    assert [(each.shown, each.values) for each in allowed.inputs] == [("--space", ("input-1",))]
    check_input(allowed, 'lr = {log = [1e-4, 1e-2]}\nmlp = ["gelu", "relu"]  # a/b is a comment\n')
    check_input(allowed, "no TOML: the command says so")
    for path in PATHS:
        if "\0" not in path and "\\" not in path and ("/" in path or "~" in path):
            with pytest.raises(UsageError):
                check_input(allowed, f'data = ["{path}", "b"]\n')
            with pytest.raises(UsageError):
                check_input(allowed, f'deep = {{in = [{{it = "{path}"}}]}}\n')
    with pytest.raises(UsageError, match="bytes"):
        check_input(allowed, "#" * 70_000)
    words = ["sweep", "any", *typed, "--metric", "m", "--", "python", "x.py", "{data}"]
    check_input(judge(person(Role.MEMBER), words, parse(words), no_runs), 'data = ["a/b", "c"]\n')


def test_a_value_is_replaced_where_it_is_the_options() -> None:
    words = ["sweep", "any", "--space", "s", "--name=s", "--", "x", "--space", "s", "--space=s"]
    made = with_value(words, "--space", "s", "input-1")
    assert made == [words[0], words[1], "--space", "input-1", *words[4:]]
    assert with_value(["sweep", "--space=s"], "--space", "s", "n") == ["sweep", "--space=n"]
    assert with_value(["sweep", "s"], "--space", "s", "n") == ["sweep", "s"]


def test_exposure_is_a_leads_to_accept() -> None:
    words = ["launch", "8xH100", "--budget", "9", "--accept-exposure", "30"]
    with pytest.raises(AccessDenied, match="role lead"):
        judge(person(Role.MEMBER), words, parse(words), no_runs)
    assert judge(person(Role.LEAD), words, parse(words), no_runs).principal == "bob"


@pytest.mark.parametrize(
    "words",
    [["nonsense"], [], ["budget"], ["budget", "nonsense"], ["stop", "--nonsense"], ["server"]],
)
def test_a_line_that_is_no_command_is_refused_in_one_line(words: list[str]) -> None:
    with pytest.raises(TrmcloudError) as refused:
        judge(person(Role.ADMINISTRATOR), words, parse(words), no_runs)
    assert "\n" not in str(refused.value)


def test_options_are_read_as_the_command_reads_them() -> None:
    parsed = parse(["launch", "8xH100", "--budget=5", "--tag", "a=b", "--tag=c=d", "-d", "-y"])
    assert parsed.command == "launch"
    assert parsed.values("hardware") == ("8xH100",)
    assert parsed.values("budget") == ("5",)
    assert parsed.values("tag") == ("a=b", "c=d")
    assert {"detach", "yes"} <= {given.name for given in parsed.given}
    assert parse(["run", "any", "--budget", "1", "--", "python", "--help"]).values("words")


@pytest.mark.parametrize("role", list(Role))
@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda e: f"{e.method} {e.path}")
def test_an_endpoint_asks_for_no_more_and_no_less_than_its_command(
    endpoint: Any, role: Role
) -> None:
    if not endpoint.command:
        return
    words = [word for word in endpoint.command.split() if not word.startswith("{")]
    name = words[0] if words[0] in COMMANDS else " ".join(words[:2])
    rule = COMMANDS[name]
    assert rule.where is Where.REMOTE
    assert role.includes(endpoint.role) == role.includes(rule.role)


@pytest.mark.parametrize("role", list(Role))
@pytest.mark.parametrize("wanted", sorted(PAGE_ENDPOINTS))
def test_a_request_of_the_page_needs_its_role_and_shows_no_other_project(
    wanted: tuple[str, str], role: Role
) -> None:
    method, pattern = wanted
    path = pattern.replace("{run}", ELSEWHERE.run_id).replace("{plan}", "p-0001")
    if not role.includes(PAGE_ENDPOINTS[wanted]):
        with pytest.raises(AccessDenied, match="needs the role"):
            require_page(person(role), method, path, no_runs)
        return
    require_page(person(role), method, path, no_runs)
    limited = person(role, projects=("vision",))
    if "{run}" in pattern:
        for guessed in (path, pattern.replace("{run}", "r-ffffff")):
            with pytest.raises(NotFoundError):
                require_page(limited, method, guessed, no_runs)
        require_page(limited, method, pattern.replace("{run}", MINE.run_id), no_runs)
    elif pattern in PAGE_OF_PROJECTS:
        require_page(limited, method, path, no_runs)
    else:
        with pytest.raises(AccessDenied, match="sees only vision"):
            require_page(limited, method, path, no_runs)


def test_what_the_page_may_not_do_is_refused_to_all() -> None:
    assert page_role("POST", "/api/plans/p-0001/launch") is None
    assert page_role("POST", "/api/budgets/account") is None
    assert page_role("DELETE", "/api/runs") is None
    assert page_role("POST", "/api/runs/r-000001/do") is Role.LEAD
    writes = {role for (method, _), role in PAGE_ENDPOINTS.items() if method != "GET"}
    assert writes == {Role.LEAD}
