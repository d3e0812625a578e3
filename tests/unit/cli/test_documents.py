"""The contract of ``--json``: every command takes it, and each document has a current schema."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tests.documents import FOLDER, document_in, lines_in
from trmcloud.cli import main
from trmcloud.cli.views import json_output
from trmcloud.core import errors
from trmcloud.core.control.reason import ReasonKind, make_reason
from trmcloud.core.errors import TrmcloudError
from trmcloud.core.money import Usd
from trmcloud.core.values import dataclass
from trmcloud.operations import encoding, schemas
from trmcloud.operations.views import Note, PriceMove, Spread, all_documents, filled, note


def commands() -> Iterator[tuple[str, Any]]:
    """Every command that can be called, by the words that call it."""
    left = [(name, main.load_command(name)) for name in main.COMMANDS]
    while left:
        words, command = left.pop(0)
        below = getattr(command, "commands", {})
        if not below or command.invoke_without_command:
            yield words, command
        left += [(f"{words} {name}", each) for name, each in below.items()]


ALL = dict(commands())


@pytest.mark.parametrize("words", ALL)
def test_every_command_takes_json(words: str) -> None:
    flags = [flag for param in ALL[words].params for flag in param.opts]
    assert "--json" in flags
    assert next(p.name for p in ALL[words].params if "--json" in p.opts) == "as_json"


def test_schemas_in_docs_are_current() -> None:
    made = {schemas.file_name(name): schema for name, schema in schemas.all_schemas().items()}
    there = {path.name: json.loads(path.read_text()) for path in FOLDER.glob("*.schema.json")}
    assert made == there, "python scripts/json_schemas.py"


@pytest.mark.parametrize("name", all_documents())
def test_a_schema_is_one_and_each_key_bears_its_unit(name: str) -> None:
    schema = schemas.schema_of(all_documents()[name])
    Draft202012Validator.check_schema(schema)
    for key, said in _keys(schema):
        kind = said.get("type")
        kinds = set(kind if isinstance(kind, list) else [kind]) - {"null"}
        if key.endswith("_usd"):
            assert said.get("pattern") or "additionalProperties" in said, key
            assert kinds <= {"string", "object"}, key
        elif key.endswith("_at"):
            assert (kinds, said["format"]) == ({"string"}, "date-time"), key
        elif key.endswith("_s"):
            assert kinds <= {"number", "object", None}, key
        assert not key.endswith(("seconds", "hours", "minutes", "usd_per_hour")), key


def _keys(schema: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    for each in (schema, *schema.get("$defs", {}).values()):
        yield from each["properties"].items()


def test_a_value_is_written_by_its_type_and_its_key() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Sample:
        cap_usd: Usd
        per_unit_usd: float
        held_usd: dict[str, Usd]
        made_at: float
        never_at: float | None
        took_s: float
        off: float
        parts: tuple[Spread, ...]
        said: Note

    sample = Sample(
        cap_usd=Usd("12.50"),
        per_unit_usd=0.0000125,
        held_usd={"r-1": Usd("0.1")},
        made_at=1_795_730_400.25,
        never_at=None,
        took_s=2.5,
        off=float("nan"),
        parts=(Spread(p10=1.0, p50=2.0, p90=float("inf")),),
        said=note("a_code", "A sentence."),
    )
    assert encoding.encode(sample) == {
        "cap_usd": "12.5",
        "per_unit_usd": "0.000013",
        "held_usd": {"r-1": "0.1"},
        "made_at": "2026-11-26T22:00:00.250Z",
        "never_at": None,
        "took_s": 2.5,
        "off": None,
        "parts": [{"p10": 1.0, "p50": 2.0, "p90": None}],
        "said": {"code": "a_code", "message": "A sentence.", "facts": {}, "next": None},
    }


def test_facts_of_the_ledger_bear_their_units() -> None:
    facts = make_reason(
        ReasonKind.BILLED_ABOVE_RATE,
        billed_usd_per_hour=Usd("4.10"),
        planned_usd_per_hour=Usd("3.60"),
    ).facts
    assert encoding.facts_in(facts) == {
        "billed_per_hour_usd": "4.1",
        "planned_per_hour_usd": "3.6",
    }


#: Stable: a program may hang on each.
CODES = {
    "error": 1, "usage": 2, "cannot_listen": 2, "not_found": 3, "budget_refused": 4,
    "grant_refused": 4,
    "does_not_fit": 5, "missing_extra": 6, "missing_tool": 6, "ledger": 7, "ledger_damaged": 7,
    "ledger_older": 7, "run_quarantined": 7, "ledger_locked": 7, "ledger_too_new": 7,
    "stale_epoch": 7, "conflict": 8, "data": 9, "checkpoint": 10, "provider": 11,
    "no_capacity": 75, "ambiguous_create": 11, "provider_refused": 11, "final_refusal": 11,
    "payment_required": 14, "auth": 15, "access_denied": 16, "not_supported": 12,
    "not_verified": 17, "receipt": 18, "trial_failed": 31, "notify": 19, "link": 13,
    "host_key_changed": 13, "login_refused": 13, "connection_dropped": 13, "no_address": 13,
    "not_sendable": 13,
}  # fmt: skip


def test_every_error_has_its_stable_code() -> None:
    kinds = [
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, TrmcloudError)
    ]
    found = {errors.code_of(kind.__new__(kind)): kind.exit_code for kind in kinds}
    assert found == CODES


def run(capfd: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command in this process."""
    json_output.begin()
    with pytest.raises(SystemExit) as left:
        main.main(list(words))
    out, err = capfd.readouterr()
    return int(left.value.code or 0), out, err


@pytest.mark.parametrize(
    ("words", "code", "exit_code"),
    [
        (("status", "r-000000", "--json"), "not_found", 3),
        (("status", "--jsom", "--json"), "usage", 2),
        (("nonsense", "--json"), "usage", 2),
        (("budget", "set", "month", "none", "--json"), "usage", 2),
        (("stop", "--json"), "not_found", 3),
        (("launch", "local", "--recipe", "none", "--json"), "not_found", 3),
        (("admin", "notify", "test", "--json"), "not_found", 3),
    ],
)
def test_an_error_is_one_document(
    words: tuple[str, ...],
    code: str,
    exit_code: int,
    tmp_path: Any,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("TRMCLOUD_HOME", str(tmp_path))
    left, out, err = run(capfd, *words)
    failure = document_in(out)
    assert (failure["schema"], failure["code"], failure["exit_code"]) == ("error/1", code, left)
    assert left == exit_code
    assert err.startswith("error: ")
    assert failure["message"] in err
    assert failure["next"]


def test_a_flag_of_the_users_own_command_is_not_ours(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRMCLOUD_HOME", str(tmp_path))
    left, out, err = run(capfd, "run", "nowhere", "--", "python", "train.py", "--json")
    assert (left, out) == (2, "")
    assert err.startswith("error: ")


READING = [
    ("plan", "--budget", "100"),
    ("plan", "--budget", "0.01"),
    ("plan", "--recipes", "--budget", "100"),
    ("plan", "--recipe", "trm", "--budget", "400", "--own", "RTX3090", "--kwh", "0.3"),
    ("prices", "list"),
    ("prices", "list", "--guides"),
    ("prices", "show", "H100-SXM"),
    ("prices", "diff"),
    ("data", "list"),
    ("data", "show", "gsm8k"),
    ("budget", "show"),
    ("budget", "set", "month", "500"),
    ("budget", "raise", "month", "800"),
    ("budget", "history"),
    ("admin", "ledger", "check"),
    ("admin", "ledger", "backups"),
    ("admin", "notify", "add", "webhook", "https://example.org/hook"),
    ("admin", "notify", "list"),
    ("admin", "notify", "remove", "webhook"),
    ("admin", "guard", "status"),
    ("status",),
    ("report",),
    ("report", "--month"),
    ("admin", "reap"),
    ("launch", "local", "--recipe", "trm-tiny", "--rate", "3.60", "--budget", "1", "--dry-run"),
]


def test_commands_that_rent_nothing_print_one_document(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRMCLOUD_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    seen = set()
    for words in READING:
        _, out, _ = run(capfd, *words, "--json")
        seen.add(document_in(out)["schema"])
    assert "error/1" not in seen


@pytest.mark.parametrize(("budget", "code"), [("0.01", 4), ("1000", 0)])
def test_no_plan_that_fits_is_no_success(
    budget: str,
    code: int,
    tmp_path: Any,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("TRMCLOUD_HOME", str(tmp_path))
    left, out, _ = run(capfd, "plan", "--budget", budget, "--json")
    plan = document_in(out)
    assert (left, plan["fits"], plan["budget_usd"]) == (code, not code, budget)
    assert (plan["recommended"] is None) == bool(code)


def test_lines_are_one_document_each(capfd: pytest.CaptureFixture[str]) -> None:
    from trmcloud.operations.views import LogLine

    json_output.begin()
    for text in ("one", "two\nand more"):
        json_output.print_line(LogLine(run="r-1", phase="fast", text=text))
    json_output.print_failure("conflict", 8, "it failed", "try again")
    *logged, failed = lines_in(capfd.readouterr().out)
    assert [line["text"] for line in logged] == ["one", "two\nand more"]
    assert failed["schema"] == "error/1"


def test_a_document_is_filled_by_the_names_of_its_fields() -> None:
    source = SimpleNamespace(p10=1.0, p50_s=2.0, p50=3.0, rate=Usd(4), sku="L4")
    assert filled(Spread, source, p90=5.0) == Spread(p10=1.0, p50=3.0, p90=5.0)
    about = {"gpus": 1, "provider": "vast", "region": "", "instance": ""}
    row = filled(PriceMove, source, before_per_hour_usd=None, **about)
    assert (row.sku, row.rate_per_hour_usd) == ("L4", Usd(4))
    with pytest.raises(AttributeError, match="SimpleNamespace has no p90"):
        filled(Spread, source)
