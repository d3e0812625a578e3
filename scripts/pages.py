"""Puts real output into README.md and docs/: the demo's transcript and picture, what a plan looks
like, and the tables of commands and options.

make demo > demo.log && .venv/bin/python scripts/pages.py demo.log
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from trmcloud.core.catalog.torch_builds import BUILDS
from trmcloud.core.contract import command
from trmcloud.core.contract import command_terms as terms
from trmcloud.core.control.run_state import TRANSITIONS
from trmcloud.core.spec.spec import RunSpec
from trmcloud.operations.commands.commands import CommandRequest
from trmcloud.options import LaunchRequest, rows_of

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
DEMO = ROOT / "docs" / "guide" / "demo.md"
COMMANDS = ROOT / "docs" / "commands.md"
CONTRACT = ROOT / "docs" / "contract.md"
ARCHITECTURE = ROOT / "docs" / "architecture.md"
PLANNER = ROOT / "docs" / "design" / "planner.md"
_CHOICES_SHOWN = 2
PICTURE = ROOT / "docs" / "screens" / "demo.svg"

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_BEAT = re.compile(r"(fast|extreme)( \w+)? step [\d,]+/")
_EVERY_NTH_BEAT = 5
_STYLES = (
    (r"^\$ .*", "bold"),
    (r"^▸.*", "bold green"),
    (r"✔", "green"),
    (r"✘", "red"),
    (r"^Recommended:|^Launch it:", "bold"),
    (r"\$[\d,]+(\.\d+)?", "yellow"),
)


def main() -> None:
    _put(COMMANDS, "help", help_table())
    _put(COMMANDS, "options", option_tables())
    _put(ARCHITECTURE, "states", state_diagram())
    _put(PLANNER, "torch builds", torch_table())
    CONTRACT.write_text(contract_page(), encoding="utf-8")
    if len(sys.argv) > 1:
        _put(DEMO, "demo", transcript(Path(sys.argv[1]).read_text(encoding="utf-8")))
    shown = block(DEMO, "demo")
    _put(README, "plan", plan_of(shown))
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(picture_of(shown), encoding="utf-8")


def help_table() -> str:
    """Return the table of commands that ``trmcloud --help-all`` prints, 80 columns wide."""
    answer = subprocess.run(
        [str(Path(sys.executable).parent / "trmcloud"), "--help-all"],
        capture_output=True,
        text=True,
        check=True,
        env={"COLUMNS": "80", "LANG": "C.UTF-8", "PATH": "/usr/bin:/bin"},
    )
    lines = [line.rstrip() for line in _ANSI.sub("", answer.stdout).splitlines()]
    first = next(n for n, line in enumerate(lines) if "─ Commands" in line)
    return "\n".join(lines[first:]).strip()


def option_tables() -> str:
    """The rows of plans, launches and commands of one's own, a table for each group."""
    groups: dict[str, list[str]] = {}
    for request, place, prefix in (
        (LaunchRequest, RunSpec, ""),
        (CommandRequest, command.Command, "command."),
    ):
        kept = {f.name: prefix + f.metadata.get("kept_as", f.name) for f in fields(place)}
        defaults = {field.name: field.default for field in fields(request)}
        for name, row in rows_of(request).items():
            words = [row.help, *(f"`{on}`: {but['help']}" for on, but in row.but.items())]
            if row.envvar:
                words.append(f"Also from `{row.envvar}`.")
            if row.in_file:
                words.append(f"In `trmcloud.toml`: `{row.key}`.")
            flags = [] if row.is_positional else [", ".join(row.flags)]
            cells = [
                f"`{' '.join([*flags, row.metavar or '']).strip()}`",
                f"`{name}`",
                f"`{kept[row.place_of(name)]}`" if row.place_of(name) else "",
                f"{defaults[name]}" if defaults[name] else "",
                ", ".join(row.on),
                " ".join(words),
            ]
            groups.setdefault(row.group, []).append(f"| {' | '.join(cells)} |")
    head = "| option | in Python | in `spec` | default | commands | |\n|---|---|---|---|---|---|"
    return "\n\n".join(
        "\n".join([f"### {group}", "", head, *rows]) for group, rows in groups.items()
    )


def torch_table() -> str:
    """The table of torch builds, a row for each."""
    rows = [
        "| build | CUDA | least driver (Linux) | GPU architectures | torch |",
        "|---|---|---|---|---|",
    ]
    for build in BUILDS:
        kernels = ", ".join(f"{sm // 10}.{sm % 10}" for sm in build.architectures)
        torch = "–".join(f"{major}.{minor}" for major, minor in (build.oldest, build.newest))
        driver = build.driver_text
        rows.append(f"| {build.name} | {build.cuda_text} | {driver} | {kernels} | {torch} |")
    return "\n".join(rows) + "\n"


def contract_page() -> str:
    """What ``trmcloud run`` agrees on with a command, from core's own definitions."""
    lines = [
        "# The contract of `trmcloud run`",
        "",
        "`scripts/pages.py` writes this page from `trmcloud/core/contract`. Both sides use only",
        "these definitions. A command needs none of them: trmcloud reads its log, its files and",
        "its exit code. A command may also use:",
        "",
        "## Environment",
        "",
        *_table("name", "meaning", terms.ENVIRONMENT),
        "",
        "On several machines (`run 2x8xH100`) the command is started on each with these variables,",
        "too. torchrun reads them automatically, because each is also set as `PET_NNODES`, …:",
        "",
        *_table("name", "meaning", terms.ON_SEVERAL),
        "",
        "## Lines of reports",
        "",
        f"Each is one line of JSON, appended to the file that `{terms.ENV_REPORTS}` names.",
        "",
        *_table("line", "meaning", terms.REPORT_LINES),
        "",
        "`trmcloud_job.py` does both for a script in Python. It is one file without dependencies,",
        "found by `import trmcloud_job` in every command, and does nothing outside of a run:",
        "",
        "```python",
        *module_signatures(),
        "```",
        "",
        "## The request to stop",
        "",
        *(
            f"{number}. {text.format(stop_file=f'`{terms.ENV_STOP_FILE}`')}"
            for number, text in enumerate(terms.STOPPING, 1)
        ),
        "",
        f"Signals: {', '.join(command.STOP_SIGNALS)}, or {command.NO_SIGNAL}.",
        "",
        "## The end of a command",
        "",
        *_table("exit", "meaning", terms.ENDS),
        "",
        "## Checkpoints and their limits",
        "",
        *_table("limit", "value", command_bounds()),
        "",
        "A file or folder below `--checkpoints` that has stopped changing is copied, hashed and",
        "given a manifest; trmcloud never loads it. Links, names that lead out of the folder,",
        "and truncated files (a zip without its end, safetensors shorter than",
        "their header says) are left out, with a reason in the log. `fetch-best` says for each",
        "whether opening it may run code, as a pickle does.",
        "",
    ]
    return "\n".join(lines)


def command_bounds() -> dict[str, str]:
    return {
        "time without a change before it counts as complete": f"{terms.SETTLED_S:g} s",
        "files of one checkpoint": f"{terms.MOST_FILES:,}",
        "folders below its name": f"{terms.MOST_DEPTH}",
        "bytes of one checkpoint": "`--checkpoint-gb`, "
        f"{command.Command(()).checkpoint_bytes / 1e9:g} GB by default",
        "kept log": f"the first {terms.MOST_LOG_BYTES >> 20} MiB, and its end",
        "characters of a line that are searched for a metric": f"{terms.MOST_LINE_CHARS:,}",
        "time that `--metric`'s pattern may take for a line": f"{terms.MOST_PATTERN_S:g} s; "
        f"after {terms.PATTERN_STRIKES} slower lines it is not used any more",
    }


def module_signatures() -> list[str]:
    """The functions of ``trmcloud_job``, as they are written there."""
    text = (ROOT / "trmcloud" / "pod" / "job" / "trmcloud_job.py").read_text(encoding="utf-8")
    found = re.findall(r'^(def [a-z]\w*\(.*?\) -> .*?):\n    """(.*?)[.:]', text, re.M | re.S)
    return [f"{signature}  # {' '.join(said.split())}" for signature, said in found]


def _table(left: str, right: str, rows: Mapping[str, str]) -> list[str]:
    made = [f"| {left} | {right} |", "|---|---|"]
    for name, text in rows.items():
        shown = f"`{name}`" if name.startswith(("TRMCLOUD", "{")) else name
        made.append(f"| {shown} | {text} |")
    return made


def state_diagram() -> str:
    """Every transition of a run, as Mermaid draws them."""
    arrows = (
        f"    {before.value} --> {after.value}: {event.__name__}"
        for (before, event), after in TRANSITIONS.items()
    )
    return "\n".join(["stateDiagram-v2", *arrows])


def transcript(log: str) -> str:
    """The demo as printed, without colours and this machine's paths; of the progress lines, which
    come every ten seconds, each fifth."""
    clean = _ANSI.sub("", log).replace(str(ROOT) + "/", "").replace("\r", "")
    lines = clean[clean.index("$ trmcloud plan") :].splitlines()
    kept, beats = [], 0
    for line in lines:
        if _BEAT.match(line):
            beats += 1
            if beats % _EVERY_NTH_BEAT != 1:
                continue
        kept.append(line.rstrip())
    return "\n".join(kept).strip()


def plan_of(shown: str) -> str:
    lines = [line for line in _commands(shown)["plan"] if line]
    at = next(n for n, line in enumerate(lines) if line.startswith("Recommended:"))
    warned = [line for line in lines[at:] if "its control" in line]
    return "\n".join([*lines[: 2 + 2 * _CHOICES_SHOWN], "…", lines[at], *warned, *lines[-2:]])


def picture_of(shown: str) -> str:
    """Plan, launch and fetch-best of the transcript, shortened at each ``…``, as an SVG."""
    commands = _commands(shown)
    launch = [line for line in commands["launch"] if not line.startswith(("data:", "  off", "  ·"))]
    first = next(n for n, line in enumerate(launch) if line.startswith("r-"))
    lines = [
        *plan_of(shown).splitlines(), "",
        launch[0], "…", *launch[first:], "",
        *commands["fetch-best"],
    ]  # fmt: skip
    text = Text("\n".join(lines))
    for pattern, style in _STYLES:
        text.highlight_regex(re.compile(pattern, re.MULTILINE), style)
    width = max(len(line) for line in lines)
    console = Console(record=True, width=width, file=io.StringIO(), force_terminal=True)
    console.print(text, soft_wrap=True)
    return console.export_svg(title="trmcloud", theme=MONOKAI, unique_id="demo")


def block(page: Path, name: str) -> str:
    """What stands on a page between a name's two marks, without its fence."""
    return _found(page, name)[1]


def _found(page: Path, name: str) -> re.Match[str]:
    found = re.search(
        rf"<!-- {name} -->\n(?:```\w*\n)?(.*?)\n?(?:```\n)?<!-- /{name} -->",
        page.read_text("utf-8"),
        re.DOTALL,
    )
    if found is None:
        raise SystemExit(f"{page.name} has no block {name!r}")
    return found


def _commands(shown: str) -> dict[str, list[str]]:
    """What each command printed, its own line included, by its name."""
    parts = re.split(r"^(?=\$ trmcloud )", shown, flags=re.MULTILINE)
    return {part.split()[2]: part.rstrip().splitlines() for part in parts if part}


def _put(page: Path, name: str, content: str) -> None:
    found = _found(page, name)
    text = found.string[: found.start(1)] + content + found.string[found.end(1) :]
    page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
