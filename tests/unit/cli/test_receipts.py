"""Receipts: what they say follows from what they carry, and whatever is changed in one is named."""

from __future__ import annotations

import base64
import hashlib
import json
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.documents import document_in
from tests.reasons import quoted
from tests.unit.cli import told_home
from tests.unit.cli.told_home import told
from trmcloud.adapters.ledger.sqlite import SqliteLedger
from trmcloud.cli.commands.verify import check_figures
from trmcloud.core.contract import manifest as mf
from trmcloud.core.control import events as ev
from trmcloud.core.control.receipt import (
    HEAD,
    SOURCES,
    Receipt,
    _hashes,
    canonical,
    make_receipt,
    read_receipt,
)
from trmcloud.core.control.receipt_page import PAGE_VERSION, changed_part, open_page, page_with
from trmcloud.core.errors import NotFoundError, Outcome, ReceiptError
from trmcloud.core.values import replace
from trmcloud.operations.money.html_page import page_of, parts_of
from trmcloud.operations.money.receipts import receipt_of
from trmcloud.wiring import build_chain, build_context

__all__ = ["told"]

SEALED = Path(__file__).parent / "sealed_receipts"
LANDED = told_home.RUNS[Outcome.LANDED]
EVIL = '"><script>alert(1)</script><img src=//evil.example onerror=alert(2)>\x1b[31m'

Verify = Callable[..., dict[str, Any]]


@pytest.fixture
def home(told: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = tmp_path / "home"
    shutil.copytree(told, made)
    monkeypatch.setenv("TRMCLOUD_HOME", str(made))
    return made


@pytest.fixture
def check(capsys: pytest.CaptureFixture[str]) -> Verify:
    """What ``report --verify --json`` says of a file; its exit code beside it."""

    def checked(path: Path, **options: str) -> dict[str, Any]:
        code = check_figures(str(path), options.get("against", ""), as_json=True)
        said = document_in(capsys.readouterr().out)
        assert code == (0 if said["matches"] else ReceiptError.exit_code)
        return dict(said)

    return checked


def made(run_id: str = LANDED) -> Receipt:
    context = build_context()
    run = context.ledger.read().runs[run_id]
    return receipt_of(context, build_chain(), run, "trmcloud test")


def metrics(home: Path, run_id: str = LANDED) -> None:
    """What a trainer logs in an hour, on the machine's clock."""
    run = SqliteLedger(home / "ledger.db").read().runs[run_id]
    began = run.generations[0].intended_at
    lines: list[dict[str, Any]] = []
    for step in range(10, 1001, 10):
        at = began + 3.0 * step
        lines.append({"kind": "train", "step": step, "at": at, "loss": 9.0 / step})
        if step % 100 == 0:
            losses = [5.0, 4.0, 3.0 + 1 / step]
            lines.append({"kind": "eval", "step": step, "at": at, "val_bpb": 2.0 - step / 2000,
                          "val_step_losses": losses})  # fmt: skip
    lines.append({"kind": "train", "step": 20, "at": "soon", "loss": float("nan")})
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (home / "runs" / run_id / "fast" / "metrics.jsonl").write_text(text)


def verdicts(said: dict[str, Any]) -> dict[str, str]:
    return {check["code"]: check["verdict"] for check in said["checks"]}


def details(said: dict[str, Any], what: str) -> str:
    return "; ".join(each["message"] for each in said["checks"] if each["code"] == what)


# -- made and read ------------------------------------------------------------------------------
@pytest.mark.parametrize("run_id", [*told_home.RUNS.values(), told_home.LIVE_RUN])
def test_each_kind_of_end_has_a_receipt_that_matches(
    home: Path, tmp_path: Path, check: Verify, run_id: str
) -> None:
    receipt = made(run_id)
    (tmp_path / "r.html").write_text(page_of(receipt))
    (tmp_path / "r.json").write_text(receipt.text)
    for name in ("r.html", "r.json"):
        said = check(tmp_path / name)
        assert said["matches"], said
        found = verdicts(said)
        assert (found["chain"], found["account"], found["ledger"]) == ("matches",) * 3
        assert (found["bill"], found["machine"]) == ("open",) * 2
    assert read_receipt(receipt.text).data == receipt.data
    assert page_of(read_receipt(receipt.text)) == page_of(receipt)


def test_a_receipt_says_what_was_asked_planned_reserved_accrued_and_billed(home: Path) -> None:
    metrics(home)
    account = made().account
    run = build_context().ledger.read().runs[LANDED]
    sums = account["money"]
    assert account["asked"] == run.spec.to_json()
    assert sums["reserved_usd"] == run.reservation.plain()
    assert (sums["billed_usd"], sums["settled_usd"]) == ("13.71", "13.72")
    assert account["ended"]["outcome"] == "landed"
    assert account["ended"]["reason"]["facts"] == {"text": told_home.WHY[Outcome.LANDED]}
    best = account["checkpoints"]
    assert (best["best"], best["latest"]) == ("fast/step-00001000",) * 2
    evals = [row for row in account["curves"] if row["kind"] == "eval"]
    assert [row["step"] for row in evals] == list(range(100, 1001, 100))
    rate, plan = run.generations[0].billed_rate, run.plan
    assert rate is not None
    assert plan is not None
    hourly = rate + plan.candidate(run.generations[0].candidate_id).disk_rate
    assert float(evals[0]["usd"]) == pytest.approx(float(hourly) * 300 / 3600, abs=2e-6)
    assert [float(row["usd"]) for row in evals] == sorted(float(row["usd"]) for row in evals)
    assert not [row for row in account["curves"] if row["step"] == 20 and row["value"] is None]


def test_a_page_opens_offline_and_runs_nothing(home: Path) -> None:
    metrics(home)
    page = page_of(made())
    assert re.findall(r"<script[^>]*>", page) == [
        f'<script type="application/json" id="data" data-page="{PAGE_VERSION}">',
    ]
    assert not re.search(r"\b(src|href|action|style|on\w+)\s*=", page)
    assert not re.search(r"url\(|@import|https?://(?!www\.w3\.org)", _shown(page))
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]+)"', page)
    style = re.search(r"<style>(.*?)</style>", page, re.DOTALL)
    assert policy is not None
    assert style is not None
    digest = hashlib.sha256(style[1].encode()).digest()
    assert f"style-src 'sha256-{base64.b64encode(digest).decode()}'" in policy[1]
    assert "default-src 'none'" in policy[1]
    assert page.count('role="img"') == 3
    assert "13.71" in page


def test_whatever_a_pod_says_is_nothing_but_words(home: Path, tmp_path: Path) -> None:
    ledger = SqliteLedger(home / "ledger.db")
    run_id = told_home.LIVE_RUN
    epoch = ledger.take_over(run_id, told_home.ME, 1.8e9)
    ledger.append(run_id, epoch, [ev.ResultKnown("failed", quoted(EVIL))], 1.8e9)
    ledger.request(run_id, ev.Fetched("fast", 9, "ab" * 32, f"/home/{EVIL}"), 1.8e9)
    folder = home / "runs" / run_id / "fast" / "checkpoints" / "step-00001000"
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["extra"] = {mf.PROVENANCE: {"python": EVIL, "torch": EVIL, "code_sha256": EVIL}}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    page = page_of(made(run_id))
    assert "<script>alert" not in page
    assert "<img" not in page
    assert "\x1b" not in page
    assert "&lt;script&gt;alert(1)" in page


# -- changed ------------------------------------------------------------------------------------
def test_one_byte_changed_is_found_and_named(home: Path) -> None:
    metrics(home)
    receipt = made()
    page, parts = page_of(receipt).encode(), parts_of(receipt)
    assert open_page(page).version == PAGE_VERSION
    assert changed_part(page, parts, receipt) == ""
    at, rng = 0, random.Random(7)
    for name, text in parts:
        for _ in range(12):
            where = at + rng.randrange(len(text.encode()))
            changed = page[:where] + bytes([page[where] ^ (1 << rng.randrange(7))])
            assert changed_part(changed + page[where + 1 :], parts, receipt) == name, where
        at += len(text.encode())
    for where, name in ((at, "data"), (at + 99, "data"), (len(page) - 1, "end")):
        changed = page[:where] + bytes([page[where] ^ 1]) + page[where + 1 :]
        assert changed_part(changed, parts, receipt) == name
    cut, grown = page[:200] + page[201:], page[:200] + b" " + page[200:]
    assert [changed_part(each, parts, receipt) for each in (cut, grown)] == ["head", "head"]
    assert changed_part(page + b"\n", parts, receipt) == "end"


def test_a_page_that_was_changed_does_not_match(home: Path, tmp_path: Path, check: Verify) -> None:
    page = page_of(made())
    for changed, part in (
        (page.replace("13.71", "11.71", 1), "head|summary|money|end"),
        (page.replace("13.71", "11.71"), ""),
        (f"{page}<p>and more</p>", "end"),
    ):
        (tmp_path / "r.html").write_text(changed)
        said = check(tmp_path / "r.html")
        assert not said["matches"]
        if part:
            assert re.search(f": ({part})$", details(said, "page"))


def test_one_byte_changed_in_the_data_is_found(home: Path, tmp_path: Path, check: Verify) -> None:
    text = made().text
    rng = random.Random(11)
    for _ in range(60):
        where = rng.randrange(len(text))
        changed = text[:where] + chr(ord(text[where]) ^ (1 << rng.randrange(6))) + text[where + 1 :]
        if changed == text:
            continue
        (tmp_path / "r.json").write_text(changed)
        try:
            said = check(tmp_path / "r.json")
        except ReceiptError:
            continue
        assert not said["matches"], (where, text[where], changed[where])


def test_a_byte_in_a_record_names_the_record(home: Path, tmp_path: Path, check: Verify) -> None:
    data = json.loads(made().text)
    row = next(r for r in data["sources"]["ledger"]["records"] if r["kind"] == "Settled")
    row["body"]["amount"] = "3.72"
    said = _checked(data, tmp_path, check)
    assert verdicts(said)["chain"] == "broken"
    assert f"record {row['seq']} (Settled) was changed" in details(said, "chain")
    assert "ledger" in details(said, "hashes")


def test_a_figure_that_was_changed_with_every_hash_does_not_follow(
    home: Path, tmp_path: Path, check: Verify
) -> None:
    data = json.loads(made().text)
    data["account"]["money"]["settled_usd"] = "3.71"
    said = _checked(_rehashed(data), tmp_path, check)
    assert verdicts(said)["hashes"] == "matches"
    assert "money.settled_usd is '3.71', but its records give '13.72'" in details(said, "account")


def test_a_record_left_out_is_missed(home: Path, tmp_path: Path, check: Verify) -> None:
    data = json.loads(made().text)
    rows = data["sources"]["ledger"]["records"]
    del rows[next(n for n, row in enumerate(rows) if row["kind"] == "GateJudged")]
    said = _checked(_rehashed(data), tmp_path, check)
    assert "broken" in (verdicts(said)["chain"], verdicts(said)["account"])


def test_records_in_another_order_do_not_follow(home: Path, tmp_path: Path, check: Verify) -> None:
    data = json.loads(made().text)
    rows = data["sources"]["ledger"]["records"]
    rows[-1]["before"] = "0" * 64
    said = _checked(_rehashed(data), tmp_path, check)
    assert "was changed after it was written" in details(said, "chain")


def test_what_a_page_shows_is_what_its_data_says(home: Path, tmp_path: Path, check: Verify) -> None:
    receipt = made()
    parts = [
        (name, text.replace("$13.71", "$11.71") if name == "money" else text)
        for name, text in parts_of(receipt)
    ]
    (tmp_path / "r.html").write_text(page_with(parts, receipt))
    said = check(tmp_path / "r.html")
    assert details(said, "page") == "the page does not match its data: money"


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[]", "<html>", '{"receipt": 1}', '{"receipt": true}', "{" * 5000, "\x00" * 50],
    ids=lambda text: text[:16],
)
def test_what_is_no_receipt_is_told(tmp_path: Path, check: Verify, text: str) -> None:
    (tmp_path / "r").write_text(text)
    with pytest.raises(ReceiptError, match="not a receipt"):
        check(tmp_path / "r")


def test_a_newer_receipt_is_not_guessed_at(home: Path, tmp_path: Path, check: Verify) -> None:
    (tmp_path / "r").write_text(canonical({**made().data, "receipt": 4}))
    with pytest.raises(ReceiptError, match="has version 4") as refused:
        check(tmp_path / "r")
    assert "newer" in refused.value.next_step


def test_a_file_that_is_gone_is_told(tmp_path: Path, check: Verify) -> None:
    with pytest.raises(NotFoundError, match="cannot be read"):
        check(tmp_path / "nowhere.html")


# -- held against -------------------------------------------------------------------------------
def checkpoint(home: Path, folder: Path, run_id: str = LANDED) -> Path:
    """A checkpoint with files of its own, put among the run's and copied into ``folder``."""
    source = home / "runs" / run_id / "fast" / "checkpoints" / "step-00001000"
    manifest = json.loads((source / "manifest.json").read_text())
    for file in manifest["files"]:
        content = file["name"].encode() * 40
        (source / file["name"]).write_bytes(content)
        file |= {"size_bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    (source / "manifest.json").write_text(json.dumps(manifest))
    shutil.copytree(source, folder)
    return folder


def test_a_checkpoint_is_held_against_it_in_another_home(
    home: Path, tmp_path: Path, check: Verify, monkeypatch: pytest.MonkeyPatch
) -> None:
    best = checkpoint(home, tmp_path / "best")
    (tmp_path / "r.html").write_text(page_of(made()))
    (best / "optimizer.safetensors").unlink()
    monkeypatch.setenv("TRMCLOUD_HOME", str(tmp_path / "elsewhere"))
    said = check(tmp_path / "r.html", against=str(best))
    found = verdicts(said)
    assert said["matches"], said
    assert (found["checkpoint"], found["weights.safetensors"]) == ("matches", "matches")
    assert (found["optimizer.safetensors"], found["ledger"]) == ("open", "open")
    assert not (tmp_path / "elsewhere").exists(), "a look makes no home"


def test_a_checkpoint_and_a_run_are_held_against_this_home(
    home: Path, tmp_path: Path, check: Verify, monkeypatch: pytest.MonkeyPatch
) -> None:
    best = checkpoint(home, tmp_path / "best")
    for said in (check(best), check(Path(LANDED))):
        assert (said["run"], said["matches"]) == (LANDED, True)
        assert (verdicts(said)["account"], verdicts(said)["ledger"]) == ("matches", "matches")
    kept = home / "runs" / LANDED / "fast" / "checkpoints" / "step-00001000"
    (kept / "weights.safetensors").write_bytes(b"other weights")
    said = check(Path(LANDED))
    assert "its hash differs" in details(said, "fast/step-00001000 weights.safetensors")
    assert not said["matches"]
    monkeypatch.setenv("TRMCLOUD_HOME", str(tmp_path / "elsewhere"))
    said = check(best)
    assert said["matches"]
    assert verdicts(said)["fast/step-00001000 weights.safetensors"] == "matches"
    assert verdicts(said)["ledger"] == "open"
    (best / "weights.safetensors").write_bytes(b"other weights")
    assert not check(best)["matches"]


def test_a_checkpoint_that_only_its_pod_reported_is_known_by_its_weights(
    home: Path, tmp_path: Path, check: Verify
) -> None:
    best = checkpoint(home, tmp_path / "best")
    manifest = mf.from_json((best / "manifest.json").read_text(), "here")
    whole = made()
    sources = replace(whole.sources, checkpoints=(), reported=(manifest.ref,))
    receipt = make_receipt(LANDED, sources, whole.made_at, "trmcloud test")
    (tmp_path / "r.json").write_text(receipt.text)
    said = check(tmp_path / "r.json", against=str(best))
    found = verdicts(said)
    assert said["matches"], said
    assert (found["account"], found["checkpoint"], found["weights.safetensors"]) == ("matches",) * 3
    assert receipt.account["checkpoints"]["best"] == manifest.label
    assert manifest.sha256 in page_of(read_receipt(receipt.text))
    (best / "weights.safetensors").write_bytes(b"other")
    assert not check(tmp_path / "r.json", against=str(best))["matches"]


@pytest.mark.parametrize("name", ["receipt-1.json", "page-4.html"])
def test_a_receipt_that_an_earlier_version_sealed_is_checked_by_its_hashes(
    tmp_path: Path, check: Verify, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("TRMCLOUD_HOME", str(tmp_path / "home"))
    text = (SEALED / name).read_text()
    said = check(SEALED / name)
    assert said["matches"], said
    found = verdicts(said)
    assert (found["hashes"], found["chain"], found["account"]) == ("matches",) * 3
    assert found["seal"] == "open"
    assert "a seal is no longer checked" in details(said, "seal")
    for before, after, part in (
        ('"settled_usd":"13.72"', '"settled_usd":"3.72"', "account"),
        ('"head_seq":', '"head_seq":1', "ledger"),
    ):
        assert before in text
        (tmp_path / name).write_text(text.replace(before, after))
        said = check(tmp_path / name)
        assert not said["matches"]
        assert details(said, "hashes") == f"changed since: {part}"


@pytest.mark.parametrize("name", HEAD[1:])
def test_the_head_of_a_receipt_has_a_hash(
    home: Path, tmp_path: Path, check: Verify, name: str
) -> None:
    data = json.loads(made().text)
    data[name] = data[name] + 1 if name == "made_at" else f"{data[name]}0"
    said = _checked(data, tmp_path, check)
    assert "head" in details(said, "hashes")


def test_other_weights_do_not_hold(home: Path, tmp_path: Path, check: Verify) -> None:
    best = checkpoint(home, tmp_path / "best")
    (tmp_path / "r.html").write_text(page_of(made()))
    weights = best / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"!")
    said = check(tmp_path / "r.html", against=str(best))
    assert verdicts(said)["weights.safetensors"] == "broken"
    manifest = json.loads((best / "manifest.json").read_text())
    manifest["val_bpb"] = 0.1
    (best / "manifest.json").write_text(json.dumps(manifest))
    said = check(tmp_path / "r.html", against=str(best))
    assert details(said, "checkpoint") == "val_bpb in the manifest differs from the receipt"
    manifest["files"][0]["sha256"] = "cd" * 32
    (best / "manifest.json").write_text(json.dumps(manifest))
    said = check(tmp_path / "r.html", against=str(best))
    assert "its weights are cdcdcdcdcdcdcdcd…" in details(said, "checkpoint")
    with pytest.raises(NotFoundError, match="no manifest"):
        check(tmp_path / "r.html", against=str(tmp_path))


def test_this_homes_ledger_may_say_otherwise(home: Path, tmp_path: Path, check: Verify) -> None:
    data = json.loads(made().text)
    part = data["sources"]["ledger"]
    part["head_seq"], part["head_sha256"] = part["head_seq"] - 1, "0" * 64
    said = _checked(_rehashed(data), tmp_path, check)
    assert verdicts(said)["ledger"] == "broken"


def test_a_receipt_is_said_to_match_and_not_to_hold(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One that somebody made up, with all its hashes right, is what the words must be true of."""
    data = json.loads(made().text)
    data["made_by"] = "a forger"
    (tmp_path / "forged.json").write_text(canonical(_rehashed(data)) + "\n")

    def told(path: Path) -> str:
        assert check_figures(str(path), "", as_json=False) == 0
        return capsys.readouterr().out

    here = told(tmp_path / "forged.json")
    assert "it matches this home's ledger; parts marked – could not be checked here" in here
    monkeypatch.setenv("TRMCLOUD_HOME", str(tmp_path / "another"))
    elsewhere = told(tmp_path / "forged.json")
    assert "it only matches itself: anyone could have made it" in elsewhere
    for text in (here, elsewhere):
        assert "holds" not in text
        assert max(map(len, text.splitlines())) <= 100


def _shown(page: str) -> str:
    return page.partition('<script type="application/json"')[0]


def _rehashed(data: dict[str, Any]) -> dict[str, Any]:
    """As somebody would leave it who knows how a receipt is made."""
    assert set(SOURCES) <= set(data["sources"])
    data["sha256"] = _hashes(data)
    return data


def _checked(data: dict[str, Any], folder: Path, check: Verify) -> dict[str, Any]:
    (folder / "changed.json").write_text(canonical(data) + "\n")
    return check(folder / "changed.json")
