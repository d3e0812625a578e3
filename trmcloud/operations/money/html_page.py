"""HTML pages that stand by themselves; receipts."""

from __future__ import annotations

import base64
import hashlib
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from typing import Any

from trmcloud.core import codec
from trmcloud.core.catalog.goals import METRICS
from trmcloud.core.catalog.hardware import LOCAL
from trmcloud.core.clock import utc_second
from trmcloud.core.contract.command import Command
from trmcloud.core.control.reason import COMMAND, MEANINGS, OF_KINDS, SWEEP, Reason
from trmcloud.core.control.receipt import Receipt
from trmcloud.core.control.receipt_page import page_with
from trmcloud.core.control.report import PARTS
from trmcloud.core.durations import duration
from trmcloud.core.errors import Outcome
from trmcloud.core.money import Usd
from trmcloud.core.reported import BY_POD, PODS
from trmcloud.core.spec.spec import RunSpec
from trmcloud.core.text import one_line
from trmcloud.operations.curves.charts import Mark, Series, legend, line_chart
from trmcloud.operations.reasons import sentence
from trmcloud.operations.words import count, title_of, value_words

#: Blue, vermilion, green and purple that are told apart by those who see fewer colours.
STYLE = """
:root{color-scheme:light dark;--ink:#1a1d21;--dim:#5a6370;--paper:#fff;--rule:#d5dae1;--bad:#a4262c;
--a:#0072b2;--b:#b84a00;--c:#00805c;--d:#a0527f}
@media(prefers-color-scheme:dark){:root{--ink:#e8eaed;--dim:#a3abb8;--paper:#16191d;--rule:#363c45;
--bad:#ff8a80;--a:#56b4e9;--b:#f2904e;--c:#35c29a;--d:#e09cc4}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);margin:0 auto;
padding:1.5rem;max-width:62rem}
h1{font-size:1.5rem;margin:0 0 .3rem}h2{font-size:1.1rem;margin:2rem 0 .5rem}
p{margin:.4rem 0}.dim{color:var(--dim)}.bad{color:var(--bad)}
table{border-collapse:collapse;width:100%}td,th{padding:.25rem .7rem .25rem 0;text-align:left;
vertical-align:top;border-bottom:1px solid var(--rule);overflow-wrap:break-word}
th{font-weight:600;color:var(--dim)}.n{text-align:right;white-space:nowrap}
td.name{width:14rem;color:var(--dim)}
code{font:13px/1.4 ui-monospace,monospace;overflow-wrap:anywhere}
.wide{overflow-x:auto}svg{width:100%;height:auto;font:12px system-ui,sans-serif}
svg text{fill:var(--dim)}.grid{stroke:var(--rule)}.mark{stroke:var(--dim);stroke-dasharray:2 4}
polyline{fill:none;stroke-width:2}.s0{stroke:var(--a)}.s1{stroke:var(--b)}.s2{stroke:var(--c)}
.s3{stroke:var(--d)}circle.s0{fill:var(--a)}circle.s1{fill:var(--b)}circle.s2{fill:var(--c)}
circle.s3{fill:var(--d)}.word{paint-order:stroke;stroke:var(--paper);stroke-width:4px}
.legend{color:var(--dim)}.key{margin-right:1.2rem;white-space:nowrap}
.key svg{width:30px;height:4px;vertical-align:middle}.key path{stroke-width:3}
"""


def head_of(title: str, style: str = STYLE) -> str:
    """All before a page's first word, with a policy that lets nothing in but its own style."""
    known = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{known}'; base-uri 'none'; form-action 'none'"
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width,initial-scale=1">\n'
        '<meta name="referrer" content="no-referrer">\n'
        f"<title>{words(title)}</title>\n<style>{style}</style>\n</head>\n<body>\n"
    )


def words(text: object) -> str:
    """Return any text as HTML without markup."""
    return escape(one_line(str(text)), quote=True)


def named_rows(rows: Iterable[tuple[str, str]]) -> str:
    """A table of a name and its value, which is HTML."""
    made = (f'<tr><td class="name">{words(name)}</td><td>{value}</td></tr>' for name, value in rows)
    return "<table>" + "".join(made) + "</table>"


def html_table(header: Sequence[str], rows: Iterable[Sequence[str]], numbers: int = 99) -> str:
    """Cells are HTML; from column ``numbers`` on they stand to the right."""

    def row(tag: str, cells: Sequence[str]) -> str:
        made = (
            f'<{tag} class="n">{cell}</{tag}>' if at >= numbers else f"<{tag}>{cell}</{tag}>"
            for at, cell in enumerate(cells)
        )
        return f"<tr>{''.join(made)}</tr>"

    body = "".join(row("td", cells) for cells in rows)
    return f'<div class="wide"><table>{row("th", list(map(words, header)))}{body}</table></div>'


def instant(at: float | None) -> str:
    return "–" if at is None else utc_second(at)


def money(plain: str | None) -> str:
    return "not known" if plain is None else str(Usd(plain))


_CODES = {
    "RunPlanned": "planned",
    "Reserved": "reserved",
    "PodIntended": "requested a machine",
    "Extended": "given more time",
    "PodUp": "the machine is listed",
    "PodNotMade": "no machine appeared",
    "AgentUp": "its agent answers",
    "PhaseEnded": "phase ended",
    "GateJudged": "gate",
    "StopRequested": "asked to stop",
    "SaveRequested": "asked to save",
    "StopLowering": "requested an earlier stop",
    "StopKnown": "stop lowered",
    "StopLowered": "money freed",
    "ResultKnown": "ended",
    "PodMissed": "the machine is not listed",
    "PodFound": "the machine is listed again, or reports",
    "PodGone": "the machine is gone",
    "Settled": "settled",
    "Billed": "final bill",
    "BoardFound": "its machine has another board",
    "PaceMeasured": "its pace was measured",
    "PlanRevised": "continued with another offer",
    "Reopened": "continued by resume",
    "Fetched": "fetched",
    "Closed": "closed",
    "StrayCharged": "an orphaned machine was charged",
}


_CHECK = (
    "<p><code>trmcloud report --verify</code> compares each part of the data with its SHA-256, "
    "computes every figure again from the ledger's records, and draws this page again. With "
    "<code>--against FOLDER</code> it compares a checkpoint with the receipt.</p>\n"
    "<p>Whoever makes a receipt could have made another one: the ledger that it was made from "
    "shows that this one was not invented. Losses, code and packages are the report of the "
    "machine that trained; only the provider can prove its bill.</p>"
)


def page_of(receipt: Receipt) -> str:
    """The page; the same receipt gives the same bytes."""
    return page_with(parts_of(receipt), receipt)


def parts_of(receipt: Receipt) -> list[tuple[str, str]]:
    """(name, HTML) of each part of a receipt's page."""
    account = receipt.account
    parts = [
        ("head", head_of(f"Receipt of {receipt.run_id}")),
        ("summary", _summary(receipt, account)),
        ("asked", _section("asked", "Asked", _asked(account))),
        ("planned", _section("planned", "Planned", _planned(account["planned"]))),
        ("money", _section("money", "Money", _money(account["money"], final=account["final"]))),
        ("curves", _section("curves", "What the dollars bought", _curves(account))),
        ("end", _section("end", "What ended it", _end(account))),
        ("machines", _section("machines", "Machines", _machines(account["machines"]))),
        ("mended", _section("mended", "Failures and recoveries", _mended(receipt))),
        ("checkpoints", _section("checkpoints", "Checkpoints and hashes", _checkpoints(account))),
        ("ledger", _section("ledger", "Ledger", _ledger(receipt))),
        ("check", _section("check", "How to check it", _CHECK)),
    ]
    return [(name, text) for name, text in parts if text]


def _section(name: str, title: str, body: str) -> str:
    return f'<section id="{name}">\n<h2>{words(title)}</h2>\n{body}\n</section>\n' if body else ""


def _metric(account: Mapping[str, Any]) -> tuple[str | None, float]:
    """Return what the run's metric is called, as ``title_of`` takes it, and the sign with which its
    scores are the metric."""
    command = account["asked"].get("command")
    if command is None:
        return None, 1.0
    made = Command(("",), metric=str(command.get("metric", "")))
    return made.metric_name, -1.0 if command.get("higher_is_better") else 1.0


def _value(account: Mapping[str, Any], score: float | None) -> str:
    name, sign = _metric(account)
    return value_words(name, None if score is None else sign * score)


def _scored(account: Mapping[str, Any], score: float | None) -> str:
    """``2.310 bits per byte``, ``val_acc 0.91``, or ``not evaluated``."""
    name, _ = _metric(account)
    if score is None or name == "":
        return "not evaluated" if name != "" else "no metric"
    value = _value(account, score)
    return f"{value} {title_of(name)}" if name is None else f"{title_of(name)} {value}"


def _summary(receipt: Receipt, account: Mapping[str, Any]) -> str:
    sums, ended = account["money"], account["ended"]
    outcome = ended["outcome"] or f"{account['state']}, not closed yet"
    best, by = _named(account, "best"), _by(account)
    asked, meant = account["asked"], ""
    if ended["outcome"]:
        kind = SWEEP if asked.get("sweep") else COMMAND if asked.get("command") else ""
        met = Outcome(ended["outcome"])
        meant = OF_KINDS[kind].get(met) or MEANINGS.get(met, "")
    best_line = ""
    if best:
        name = words(best["checkpoint"])
        best_line = f" · best {_scored(account, best['val_bpb'])} at {name}{by}"
    lines = [
        f"<h1>Receipt of {words(receipt.run_id)}</h1>",
        f'<p class="dim">made {instant(receipt.made_at)} by {words(receipt.made_by)}</p>',
        f"<p><strong>{words(outcome)}</strong>{f' · {words(meant)}' if meant else ''}</p>",
        f"<p>{money(sums['settled_usd'])} of {money(sums['cap_usd'])} · "
        f"{duration(sums['paid_seconds'])} paid{best_line}</p>",
    ]
    if goal := account.get("goal"):
        lines.append(f"<p>{_goal(goal)}{by}</p>")
    if not account["final"]:
        lines.append('<p class="bad">Not final: the cost may still change.</p>')
    return "\n".join(lines) + "\n"


def _goal(goal: Mapping[str, Any]) -> str:
    """``goal gpt2: reached: CORE 0.2626 at train/step-00005567, CORE ≥ 0.2565 asked``"""
    metric, sign = METRICS[goal["metric"]], "≥" if goal["higher"] else "≤"
    asked = f"{sign} {goal['threshold']:g} asked"
    if goal["value"] is None:
        return f"goal {words(goal['goal'])}: not judged; {words(metric)} {asked}"
    said = "reached" if goal["reached"] else "not reached"
    return (
        f"goal {words(goal['goal'])}: <strong>{said}</strong>: {words(metric)} "
        f"{goal['value']:.4g} at {words(goal['checkpoint'])}, {asked}"
    )


def _asked(account: Mapping[str, Any]) -> str:
    spec = RunSpec.from_json(account["asked"])
    usual = RunSpec(spec.recipe, spec.phases).to_json()
    rows = [("recipe", words(spec.recipe)), ("phases", words(" + ".join(spec.phases)))]
    for name, value in account["asked"].items():
        if name == "goal":
            if value:
                rows.append((name, words(f"{value['name']}: {value['title']}")))
        elif name not in ("recipe", "phases") and value != usual.get(name):
            rows.append((name, words(_told(value))))
    if "principal" in account:
        rows.append(("principal", words(account["principal"])))
    return named_rows([*rows, ("project", words(account["project"]))])


def _planned(planned: Mapping[str, Any]) -> str:
    rows = [("plan", f"{words(planned['plan'])}, {instant(planned['made_at'])}")]
    if "hardware" in planned:
        hours = planned["hours"]
        rows += [
            ("hardware", f"{words(planned['hardware'])} · {words(planned['sku'])}"),
            ("where", words(f"{planned['provider']} {planned['region']}".strip())),
            ("rate", f"{money(planned['rate_usd_per_hour'])}/h"),
            (
                "length",
                f"{duration(hours['p50'] * 3600)} "
                f"({duration(hours['p10'] * 3600)}–{duration(hours['p90'] * 3600)})",
            ),
            (
                "cost",
                f"{money(planned['cost_usd']['p50'])} (P90 {money(planned['cost_usd']['p90'])})",
            ),
            (
                "stops",
                f"stops and saves {duration(planned['soft_stop_s'])}, hard stop "
                f"{duration(planned['hard_stop_s'])} after the request",
            ),
            ("worst case", money(planned["worst_case_usd"])),
        ]
        rows += [
            (each["phase"], f"{each['steps']:,} steps, {count(each['tokens'])} tokens")
            for each in planned["phases"]
        ]
    rows.append(("checkpoints in", words(planned["checkpoints_in"])))
    return named_rows(rows)


def _money(sums: Mapping[str, Any], *, final: bool) -> str:
    rows = [
        ("cap", money(sums["cap_usd"])),
        ("planned", money(sums["planned_usd"])),
        ("reserved at launch", money(sums["reserved_usd"])),
        ("accrued, rate × time", money(sums["accrued_usd"])),
        ("billed by the provider", money(sums["billed_usd"])),
        ("settled", money(sums["settled_usd"])),
    ]
    if not final:
        rows.append(("still reserved", money(sums["held_usd"])))
        rows.append(("at most, until bills are final", money(sums["at_most_usd"])))
    for name, key in (
        ("orphaned machines", "orphans_usd"),
        ("network volumes, until their planned end", "volumes_usd"),
        ("uploads beyond grants, in the bucket", "bucket_usd"),
    ):
        if Usd(sums[key]):
            rows.append((name, money(sums[key])))
    if sums["drift"] is not None:
        rows.append(("billed compared with accrued", f"{round(sums['drift'], 3) or 0.0:+.1%}"))
    paid = sums["paid_seconds"]
    spent = [
        (part, duration(sums["seconds"][part]), f"{sums['seconds'][part] / paid:.0%}")
        for part in PARTS
        if paid and sums["seconds"].get(part, 0.0) >= 0.5
    ]
    where = html_table(("paid time", "", ""), spent, numbers=1) if spent else ""
    return named_rows(rows) + where


def _curves(account: Mapping[str, Any]) -> str:
    points = account["curves"]
    in_dollars = any(Usd(point["usd"]) for point in points)

    def x(row: Mapping[str, Any]) -> float:
        return float(Usd(row["usd"])) if in_dollars else float(row["hours"])

    def said(value: float) -> str:
        return f"${value:,.4g}" if in_dollars else f"{value:g} h"

    x_title = "dollars spent" if in_dollars else "hours"
    marks = _marks(account, x) if in_dollars else []
    phases = list(dict.fromkeys(point["phase"] for point in points))
    charts = []
    validation = f"validation {title_of(_metric(account)[0])}"
    for title, kind in ((validation, "eval"), ("training loss, nats per token", "train")):
        sign = _metric(account)[1] if kind == "eval" else 1.0
        series = [
            Series(
                phase,
                tuple((x(p), sign * p["value"]) for p in points
                      if (p["phase"], p["kind"]) == (phase, kind)),
                dots=kind == "eval",
            )
            for phase in phases
        ]  # fmt: skip
        charts.append(_chart(f"{title} against {x_title}", series, marks, said, x_title))
    for phase in phases:
        rows = [p for p in points if (p["phase"], p["kind"]) == (phase, "eval") and p["steps"]]
        passes = max((len(row["steps"]) for row in rows), default=0)
        if passes < 2:
            continue
        chosen = sorted({0, passes // 3, 2 * passes // 3, passes - 1})
        series = [
            Series(
                f"supervision step {n + 1}",
                tuple((x(row), row["steps"][n]) for row in rows if len(row["steps"]) > n),
            )
            for n in chosen
        ]
        title = f"{phase}: nats per token after each supervision step against {x_title}"
        charts.append(_chart(title, series, marks, said, x_title))
    return "\n".join(filter(None, charts)) or "<p>No metrics are on this machine.</p>"


def _chart(
    title: str,
    series: Sequence[Series],
    marks: Sequence[Mark],
    said: Callable[[float], str],
    x_title: str,
) -> str:
    drawn = line_chart(title, series, marks, x_words=said, x_title=x_title, x_from=0.0)
    named = title[:1].upper() + title[1:]
    return f"<p>{words(named)}</p>\n{legend(series)}{drawn}" if drawn else ""


def _marks(account: Mapping[str, Any], x: Callable[[Mapping[str, Any]], float]) -> list[Mark]:
    """Return marks of events, at most two dozen: each save would hide the curve."""
    shown = {"GateJudged", "StopRequested", "PodGone", "PlanRevised", "Reopened", "PodMissed"}
    made = [
        Mark(x(row), _CODES.get(row["what"], row["what"]))
        for row in account["timeline"]
        if row["what"] in shown
    ]
    best = _named(account, "best")
    if best is not None:
        mine = best["checkpoint"].partition("/")[0], best["step"], "save"
        saved = [p for p in account["curves"] if (p["phase"], p["step"], p["kind"]) == mine]
        made += [
            Mark(x(point), f"{PODS} best saved" if _by(account) else "best saved")
            for point in saved[-1:]
        ]
    return made[:24]


def _end(account: Mapping[str, Any]) -> str:
    ended = account["ended"]
    rows = [("outcome", words(ended["outcome"] or "none yet"))]
    if why := _reason(ended["reason"]):
        rows.append(("why", words(why)))
    if ended["asked_by"]:
        rows.append(("asked to stop by", words(ended["asked_by"])))
        rows.append(("because", words(_reason(ended["asked_why"]))))
    for phase in account["phases"]:
        scored = _scored(account, phase["val_bpb"])
        said = f"{phase['outcome']} at step {phase['step'] or 0:,}, {scored}"
        rows.append((str(phase["phase"]), words(f"{said}{_by(account)}")))
    for phase, verdict in account["gates"].items():
        told = "passed" if verdict.get("passed") else "failed"
        rows.append((f"gate after {phase}", words(f"{told}{_by(account)}")))
    moments = [
        (instant(row["at"]), words(_CODES.get(row["what"], row["what"])), words(_about(row)),
         money(row["usd"]))
        for row in account["timeline"]
    ]  # fmt: skip
    return named_rows(rows) + html_table(("when", "what", "", "spent by then"), moments, numbers=3)


def _about(row: Mapping[str, Any]) -> str:
    told = [str(row[name]) for name in ("phase", "outcome", "result") if row.get(name)]
    told += [f"{money(row['amount'])}"] if "amount" in row else []
    told += [f"{money(row['rate'])}/h"] if "rate" in row else []
    if "passed" in row:
        told.append("passed" if row["passed"] else "failed")
    return " · ".join(told)


def _machines(machines: Sequence[Mapping[str, Any]]) -> str:
    rows = []
    for each in machines:
        billed = each["billed_rate_usd_per_hour"]
        rate = f"{money(each['rate_usd_per_hour'])}/h"
        if billed is not None and billed != each["rate_usd_per_hour"]:
            rate += f", billed {money(billed)}/h"
        made = _reason(each["not_made"]) or _reason(each["unfit"])
        rows.append(
            (
                words(each["generation"]),
                words(f"{each['hardware']} · {each['provider']} {each['region']}".strip()),
                instant(each["asked_for_at"]),
                words(f"not made: {made}") if each["not_made"] else words(made),
                rate,
                duration(each["seconds"]),
                money(each["settled_usd"]),
            )
        )
    header = ("", "machine", "asked for", "", "rate", "lived", "settled")
    return html_table(header, rows, numbers=4) if rows else ""


def _mended(receipt: Receipt) -> str:
    rows = [
        (
            words(f"{row.phase} step {row.step:,}"),
            words(f"{row.what}{f', {row.times} times' if row.times > 1 else ''}"),
            words(row.rung + (f": {_told(row.changed)}" if row.changed else "")),
            words(row.why[:200]),
            f"{row.lost_steps:,}",
            duration(row.lost_s),
        )
        for row in receipt.sources.mended
    ]
    header = ("where", "what", "by", "", "steps lost", "time lost")
    return html_table(header, rows, numbers=4) if rows else ""


def _checkpoints(account: Mapping[str, Any]) -> str:
    best, latest = _named(account, "best"), _named(account, "latest")
    both = best is not None and best == latest
    chosen = [("best and latest" if both else "best", best)]
    if best is None or latest is None or latest["checkpoint"] != best["checkpoint"]:
        chosen.append(("latest", latest))
    parts = [named_rows(_hashes(name, made, account)) for name, made in chosen if made]
    rows = [
        (words(each["checkpoint"]), _value(account, each["val_bpb"]),
         f"{each['size_bytes'] / 1e6:,.1f} MB", f"<code>{words(each['weights_sha256'])}</code>")
        for each in account["checkpoints"]["all"]
    ]  # fmt: skip
    if not rows:
        return "<p>No checkpoint is known.</p>"
    header = (
        "checkpoint",
        f"{title_of(_metric(account)[0])}{_by(account)}",
        "size",
        "weights, SHA-256",
    )
    return "\n".join([*parts, html_table(header, rows)])


def _hashes(
    name: str, made: Mapping[str, Any], account: Mapping[str, Any]
) -> list[tuple[str, str]]:
    about = {"code_sha256": "not reported by its trainer", "packages_sha256": "not reported"}
    about |= made["provenance"] or {}
    scored = _scored(account, made["val_bpb"])
    rows = [
        (name, words(f"{made['checkpoint']} · {scored}{_by(account)}")),
        *((file, f"<code>{words(known)}</code>") for file, known in (made["files"] or {}).items()),
        ("data", f"<code>{words(made['data_sha256'])}</code>"),
        ("tokenizer", f"<code>{words(made['tokenizer_sha256'])}</code>"),
        ("code", f"<code>{words(about['code_sha256'])}</code>"),
        ("packages", f"<code>{words(about['packages_sha256'])}</code>"),
    ]
    if made["provenance"]:
        told = f"Python {about.get('python', '?')}, torch {about.get('torch', '?')}"
        rows.append(("environment", words(told)))
    if about.get("command"):
        rows.append(("command", f"<code>{words(shlex.join(map(str, about['command'])))}</code>"))
        commit = f"<code>{words(about.get('git_commit') or 'none')}</code>"
        rows.append(("git commit", f"{commit}{', with changes' if about.get('dirty') else ''}"))
    return rows


def _ledger(receipt: Receipt) -> str:
    part = receipt.sources.ledger
    rows = [
        ("ledger", f"<code>{words(part.ledger_id)}</code>"),
        ("its newest record then", f"{part.head_seq:,} · <code>{words(part.head_sha256)}</code>"),
        ("records of this run", f"{len(part.records):,}"),
    ]
    links = [
        (f"{row.seq:,}", instant(row.at), words(_CODES.get(row.kind, row.kind)),
         f"<code>{words(row.sha256[:16])}…</code>")
        for row in part.records
    ]  # fmt: skip
    folded = html_table(("record", "when", "what", "SHA-256"), links)
    return named_rows(rows) + f"<details><summary>Show all</summary>{folded}</details>"


def _by(account: Mapping[str, Any]) -> str:
    """Return the source of its metrics and gates, where a machine was rented."""
    rented = any(each["provider"] != LOCAL for each in account["machines"])
    return f" {BY_POD}" if rented else ""


def _named(account: Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
    label = account["checkpoints"][name]
    rows = [row for row in account["checkpoints"]["all"] if row["checkpoint"] == label]
    return rows[-1] if rows else None


def _reason(data: Mapping[str, Any] | None) -> str:
    return sentence(codec.from_json(Reason, data)) if data is not None else ""


def _told(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_told(each)}" for key, each in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_told, value))
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)
