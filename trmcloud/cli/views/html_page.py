"""Pages of HTML that open offline: no script, nothing from any host, every word escaped."""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import Iterable, Sequence
from html import escape

from trmcloud.core.money import Usd
from trmcloud.core.plain_text import one_line

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
    """Anybody's words, as HTML that is nothing but words."""
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
    if at is None:
        return "–"
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(at))


def money(plain: str | None) -> str:
    return "not known" if plain is None else str(Usd(plain))
