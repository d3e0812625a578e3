"""A diagnostic bundle: what one run was, asked and was answered, redacted, as readable text.

It is made for a stranger to read: ``README.txt`` lists each file and what was taken out of it.
"""

from __future__ import annotations

import gzip
import io
import json
import platform
import sys
import tarfile
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

from trmcloud.core.control.run_state import RunState
from trmcloud.core.errors import DataError
from trmcloud.io.exchanges import recorded_exchanges
from trmcloud.io.files import write_atomic
from trmcloud.io.redaction import Redactor
from trmcloud.operations.context import Context
from trmcloud.operations.money.receipts import records_of
from trmcloud.ports.ledger import ChainedLedger

VERSION = 1
_BEFORE_S, _AFTER_S = 900.0, 900.0
"""Exchanges from so long before a run's first record to so long after its last one are its own."""
_MOST_LOG_BYTES = 1 << 17
_MOST_EXCHANGES = 5_000
_PACKAGES = (
    "boto3",
    "httpx2",
    "numpy",
    "pydantic",
    "rich",
    "runpod",
    "skypilot",
    "tenacity",
    "torch",
    "typer",
)
_LOGS = ("boot", "agent", "guardian", "train")


class Bundle(NamedTuple):
    """The archive that was written, its files' names and the number of exchanges in it."""

    path: Path
    names: tuple[str, ...]
    exchanges: int
    size_bytes: int


def write_bundle(
    context: Context,
    chain: ChainedLedger,
    run: RunState,
    report: Mapping[str, Any],
    redactor: Redactor,
    into: Path,
) -> Bundle:
    """Write the run's bundle to ``into``, a ``.tar.gz`` with mode 0600.

    Raises:
        DataError: it cannot be written there.
    """
    links = records_of(context, chain, run.run_id)
    times = [link.at for link in links] or [context.wall()]
    exchanges = _own_exchanges(context.home, min(times) - _BEFORE_S, max(times) + _AFTER_S)
    records = ({"at": _utc(link.at), "kind": link.kind, **_object(link.body)} for link in links)
    files = {
        "run.json": _pretty(redactor.json(_about(context, run))),
        "records.jsonl": _jsonl(map(redactor.json, records)),
        "report.json": _pretty(redactor.json(report)),
        "exchanges.jsonl": _jsonl(map(redactor.json, exchanges)),
        "boot.txt": _boot_lines(exchanges, redactor),
        "versions.json": _pretty(redactor.json(_versions())),
    }
    for name, path in _logs(context.home, run):
        files[f"logs/{name}"] = redactor.text(_end_of(path))
    files = {"README.txt": _readme(run, files, len(exchanges)), **files}
    content = _archive(run.run_id, files, context.wall())
    try:
        into.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(into, content, durable=False, mode=0o600)
    except OSError as error:
        raise DataError(f"it cannot be written: {error.strerror}", where=str(into)) from None
    return Bundle(into, tuple(files), len(exchanges), len(content))


def _about(context: Context, run: RunState) -> dict[str, Any]:
    return {
        "version": VERSION,
        "run_id": run.run_id,
        "state": run.state.value,
        "outcome": run.outcome.value if run.outcome is not None else None,
        "made_at": _utc(context.wall()),
        "machines": [
            {
                "number": each.number,
                "provider": each.provider,
                "candidate": each.candidate_id,
                "asked_for_at": _utc(each.intended_at),
                "up_at": _utc(each.up_at),
                "agent_at": _utc(each.agent_at),
                "gone_at": _utc(each.gone_at),
            }
            for each in run.generations
        ],
    }


def _own_exchanges(home: Path, begin: float, end: float) -> list[dict[str, Any]]:
    within = [each for each in recorded_exchanges(home) if begin <= float(each["at"]) <= end]
    calls = [each for each in within if each["kind"] == "calls"]
    reads = [each for each in within if each["kind"] != "calls"]
    room = max(0, _MOST_EXCHANGES - len(calls))
    kept = [*calls[-_MOST_EXCHANGES:], *(reads[-room:] if room else ())]
    return sorted(kept, key=lambda each: float(each["at"]))


def _boot_lines(exchanges: Iterable[Mapping[str, Any]], redactor: Redactor) -> str:
    """The lines of pods' logs that a provider gave, each once."""
    lines: dict[str, None] = {}
    for each in exchanges:
        if each["method"] == "GET" and "/logs" in str(each["url"]):
            answer = each.get("answer")
            text = answer if isinstance(answer, str) else json.dumps(answer)
            lines.update(dict.fromkeys(text.splitlines()))
    return "".join(f"{redactor.text(line)}\n" for line in lines if line.strip())


def _logs(home: Path, run: RunState) -> Iterable[tuple[str, Path]]:
    """The run's own logs on this machine, and those of its pods where they were this machine."""
    folder = home / "runs" / run.run_id
    for path in sorted(folder.glob("**/*.log")) if folder.is_dir() else ():
        if path.stem in _LOGS:
            yield "-".join(path.relative_to(folder).parts), path
    for generation in run.generations:
        for path in sorted((home / "pods" / generation.pod_name).glob("*.log")):
            yield f"g{generation.number}-{path.name}", path


def _end_of(path: Path) -> str:
    try:
        with open(path, "rb") as file:
            file.seek(max(0, path.stat().st_size - _MOST_LOG_BYTES))
            return file.read(_MOST_LOG_BYTES).decode("utf-8", "replace")
    except OSError as error:
        return f"it cannot be read: {error.strerror}\n"


def _versions() -> dict[str, Any]:
    found = {}
    for name in ("trmcloud", *_PACKAGES):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return {"python": sys.version.split()[0], "system": platform.platform(), "packages": found}


_MEANING: Mapping[str, str] = {
    "run.json": "the run: its machines, when each started, how it ended",
    "records.jsonl": "the ledger's records of the run, its plan first, with their times",
    "report.json": "the bill: planned, reserved, accrued, billed, and where the time went",
    "exchanges.jsonl": "requests to the provider, and its answers: {exchanges}",
    "boot.txt": "boot logs of the pods, from the provider",
    "versions.json": "versions of trmcloud, Python, the system and packages",
}


def _readme(run: RunState, files: Mapping[str, str], exchanges: int) -> str:
    rows = [
        f"  {name:<24} {len(text.encode()):>9,} bytes  "
        + _MEANING.get(name, "the end of a log file of the run").format(exchanges=exchanges)
        for name, text in files.items()
    ]
    return "\n".join([
        f"Diagnostic bundle, format {VERSION}: {run.run_id}",
        "",
        "All files are text. Read them before you send them to other people.",
        "",
        *rows,
        "",
        "Removed, and marked [removed: ...] in the text:",
        "  - account keys, tokens and passwords: those in your environment, texts that look like",
        "    one, and fields with such names",
        "  - headers of requests (one has the key), and those of answers except type, date, limits",
        "  - values of environment variables of pods",
        "  - parameters of URLs in texts: a presigned address gives access to a file",
        "  - SSH keys, private and public",
        "  - e-mail addresses, ids of the account, your user name, this machine's name; your home",
        "    folder is written ~",
        "  - strings of more than 2,000 characters (such as a pod's boot program): their length",
        "    and hash are kept",
        "",
        "Not in it: your data, your code, checkpoints, metrics, other runs' records.",
        "Still in it: the provider's lists during this run, with pods of other runs of the",
        "account; addresses of pods; the words of your command; the ends of the logs named above.",
        "",
    ])  # fmt: skip


def _archive(run_id: str, files: Mapping[str, str], at: float) -> bytes:
    buffer = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=buffer, mode="wb", mtime=int(at)) as packed,
        tarfile.open(fileobj=packed, mode="w") as archive,
    ):
        for name, text in files.items():
            content = text.encode("utf-8", "replace")
            member = tarfile.TarInfo(f"trmcloud-{run_id}/{name}")
            member.size, member.mtime, member.mode = len(content), int(at), 0o600
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def _utc(at: float | None) -> str | None:
    """An instant as RFC 3339."""
    if at is None:
        return None
    return datetime.fromtimestamp(at, timezone.utc).isoformat(timespec="milliseconds")


def _object(body: str) -> dict[str, Any]:
    made = json.loads(body)
    return made if isinstance(made, dict) else {"body": made}


def _pretty(value: Any) -> str:
    return json.dumps(value, indent=1, sort_keys=False) + "\n"


def _jsonl(rows: Iterable[Any]) -> str:
    return "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows)
