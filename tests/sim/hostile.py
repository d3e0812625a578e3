"""Faults 65–70 and 74: a pod that says what no agent would, or uploads what none was granted. Every
word goes through the readers that real ones go through, and what they accept is judged by bounds of
this file's own."""

from __future__ import annotations

import json
import math
import random
import string
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, is_dataclass
from functools import lru_cache, partial
from typing import Any

from trmcloud.core.contract import gate
from trmcloud.core.contract import manifest as mf
from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.contract.bucket import load_grants, load_uploads, worth_saving
from trmcloud.core.contract.records import parse_lines, whole
from trmcloud.core.contract.trainer_contract import load_heartbeat
from trmcloud.core.control.actions import pull_name
from trmcloud.core.errors import CheckpointError
from trmcloud.core.text import one_line
from trmcloud.sim.faults.arm import Fault, FaultContext
from trmcloud.sim.world.account import RentedMachine
from trmcloud.sim.world.store import OversizedObject, make_manifest

LOOKING_AFTER = ("launch", "reap", "user")
"""Processes that look after runs without a driver."""
Lie = Callable[[dict[str, Any], random.Random], str]
"""Makes the JSON text that is said in the place of an honest report."""

_PLAIN = frozenset(string.ascii_letters + string.digits + "._-")
_HEX = frozenset("0123456789abcdef")
_LABELS = frozenset({"run_id", "pod_name", "phase", "name", "outcome", "recipe"})
_COUNTS = frozenset(
    {"step", "steps", "saved_step", "size_bytes", "attempt", "attempts", "fruitless", "epoch",
     "pid", "restarts", "tokens", "world_size", "keep_best"}
)  # fmt: skip
_HUGE_TEXT = "@huge@"
_STEER = "\x1b]0;x\x07\x1b[2J\x9b31m\u202e\u2066\ufeff\ud83d\r\nerror: x"


# -- bounds of its own ----------------------------------------------------------------------------
def unsound(value: Any, name: str = "", depth: int = 0) -> str:
    """Why something that was accepted should not have been; '' where it may be."""
    if depth > 33:
        return f"{name} is nested too deeply"
    if isinstance(value, str):
        return _unsound_text(value, name)
    if isinstance(value, bool) or value is None:
        return f"{name} is {value}" if isinstance(value, bool) and name in _COUNTS else ""
    if is_dataclass(value):
        value = {key: getattr(value, key) for key in value.__dataclass_fields__}
    if isinstance(value, dict):
        # A check's name is for people; every other one can be part of a path.
        for_people = "blocking" in value
        for key, item in value.items():
            key = "" if for_people else f"{key}"
            why = unsound(item, key, depth + 1) or _unsound_text(key, "")
            if why:
                return why
        return ""
    if isinstance(value, (list, tuple)):
        if len(value) > 4096:
            return f"{name} holds {len(value)} rows"
        for item in value:
            why = unsound(item, name, depth + 1)
            if why:
                return why
        return ""
    return _unsound_number(value, name)


@lru_cache(maxsize=4096)
def _unsound_text(value: str, name: str) -> str:
    if len(value) > 20_000:
        return f"{name} is a text of {len(value)} characters"
    if any("\ud800" <= c <= "\udfff" for c in value):
        return f"{name} holds half a character"
    if name in _LABELS and not (value[:1].isalnum() and set(value) <= _PLAIN and len(value) < 100):
        return f"{name} is no plain name"
    if name == "sha256" and not (len(value) == 64 and set(value) <= _HEX):
        return "sha256 is no hash"
    return ""


def _unsound_number(value: float, name: str) -> str:
    if abs(value) >= 1e300 or not math.isfinite(value):
        return f"{name} is {value!r:.40}"
    if name in _COUNTS and not (isinstance(value, int) and 0 <= value < 1 << 63):
        return f"{name} is {value!r:.40}"
    if (name.endswith("_at") or name in ("at", "until", "granted_until")) and not 0 <= value < 1e12:
        return f"{name} is {value!r:.40}"
    return f"{name} is {value}" if name == "step" and value > 99_999_999 else ""


# -- what is said ---------------------------------------------------------------------------------
_NUMBERS = (
    "9" * 5000, "-" + "9" * 5000, "1e400", "-1e400", "NaN", "Infinity", "-Infinity", "-1", "-5",
    "9223372036854775808", "18446744073709551616", "1" * 40, "true", "false", '"12"', "1.5", "[]",
    "{}", "null", "1e299", "-9223372036854775809", "1" + "0" * 30,
)  # fmt: skip
_NAMES = (
    "a/b", "../../x", "", ".", "..", ".hidden", "a b", "a\nb", "a\x00b", "x" * 200, "é", _STEER,
    "-rf", "fast/../../x", "~", "$(x)",
)  # fmt: skip
_GATES: tuple[Any, ...] = (
    {"passed": True}, {}, [1], "passed", True, {"phase": "fast", "passed": 1, "checks": []},
    {"phase": "a/b", "passed": True, "checks": []}, {"phase": "fast", "passed": True},
    {"phase": "fast", "passed": True, "checks": [{}]},
    {"phase": "fast", "passed": True, "checks": {"a": 1}},
    {"phase": "fast", "passed": True, "checks": [["order", True, True, "x"]]},
    {"phase": "fast", "passed": None, "checks": [], "more": 1},
    {"phase": "fast", "passed": True, "checks": [
        {"name": 5, "passed": True, "blocking": True, "detail": "x"}]},
    {"phase": "fast", "passed": True, "checks": [
        {"name": "x", "passed": "yes", "blocking": True, "detail": "x"}]},
)  # fmt: skip
_GARBAGE = (
    "", "null", "[]", "{", "[" * 20_000, '{"a":' * 5000, "9" * 6000, "NaN", '"x"', "\x00", "{}",
    '{"version": 1}', '{"version": 2}', '{"version": true}',
)  # fmt: skip


def _kept(data: dict[str, Any], rng: random.Random, **changes: Any) -> dict[str, Any]:
    phases = [phase["name"] for phase in data["phases"]] or ["fast"]
    row = {"phase": rng.choice(phases), "step": 1, "sha256": "a" * 64, "size_bytes": 5}
    return {**row, "val_bpb": 1.0, **changes}


def _lying_sizes(data: dict[str, Any], rng: random.Random) -> str:
    """Numbers that are none, or none that can be, wherever one is expected."""
    data["kept"] = [_kept(data, rng), *data["kept"]]
    places = [(data["kept"][0], name) for name in ("size_bytes", "step", "val_bpb")]
    places += [(data, name) for name in ("epoch", "pid", "at", "restarts", "hard_stop_at")]
    places += [(phase, "attempts") for phase in data["phases"][:1]]
    holder, name = rng.choice(places)
    holder[name] = _HUGE_TEXT
    return json.dumps(data).replace(f'"{_HUGE_TEXT}"', rng.choice(_NUMBERS))


def _garbage(data: dict[str, Any], rng: random.Random) -> str:
    honest = json.dumps(data)
    cut = rng.randrange(len(honest))
    odd: list[Callable[[], str]] = [
        lambda: honest[:cut],
        lambda: honest * 2,
        lambda: honest[:-1] + ', "epoch": 7, "epoch": 8}',
        lambda: honest + "\x00",
        lambda: json.dumps({**data, "message": "\ud83d" + _STEER}),
    ]
    told: list[str | Callable[[], str]] = [*_GARBAGE, *odd]
    chosen = rng.choice(told)
    return chosen if isinstance(chosen, str) else chosen()


def _offer_much(arms: FaultContext) -> None:
    for text in _accepted_of_much(json.dumps(_kept({"phases": []}, arms.rng))):
        arms.world.fail("I9", f"a report was accepted that is far too much: {text[:80]}")


@lru_cache(maxsize=1)
def _accepted_of_much(row: str) -> tuple[str, ...]:
    """Of reports with more of anything than any real one has, those that are read all the same."""
    data = {"run_id": "r-1", "pod_name": "p", "epoch": 1, "pid": 1, "started_at": 1.0, "at": 1.0,
            "phases": [], "soft_stop_at": 1.0, "hard_stop_at": 1.0, "version": 1}  # fmt: skip
    honest, long = json.dumps(data), "x" * 40_000
    seconds = {str(n): 1.0 for n in range(5000)}
    much = ({"kept": [json.loads(row)] * 5000}, {"message": long}, {"notes": {long: ""}},
            {"phases": [{"name": "fast", "seconds": seconds}]})  # fmt: skip
    texts = [json.dumps({**data, **more}) for more in much]
    accepted = []
    for text in (*texts, honest + " " * (1 << 20), honest[:-1] + ', "epoch": 7, "epoch": 8}'):
        with suppress(contract.ContractError):
            contract.load_report(text)
            accepted.append(text)
    return tuple(accepted)


def _bad_gate(data: dict[str, Any], rng: random.Random) -> str:
    for phase in data["phases"]:
        phase["gate"] = rng.choice(_GATES)
    return json.dumps(data)


def _fake_kept(data: dict[str, Any], rng: random.Random) -> str:
    """Checkpoints that are not there, better and later than any: at worst what is reserved goes."""
    fakes = [
        _kept(data, rng, step=99_999_999, val_bpb=0.001, size_bytes=1 << 60),
        _kept(data, rng, step=99_999_998, val_bpb=-5.0, sha256="b" * 64),
    ]
    data["kept"] = [*data["kept"], *fakes]
    return json.dumps(data)


def _hostile_names(data: dict[str, Any], rng: random.Random) -> str:
    name = rng.choice(_NAMES)
    what = rng.choice(("phase", "sha256", "name", "run_id", "pod_name", "outcome"))
    if what in ("phase", "sha256"):
        data[rng.choice(("kept", "uploaded"))] = [_kept(data, rng, **{what: name})]
    elif what in data:
        data[what] = name
    elif data["phases"]:
        rng.choice(data["phases"])[what] = name
    return json.dumps(data)


def _too_deep(data: dict[str, Any], rng: random.Random) -> str:
    deep = rng.choice((40, 400, 5000))
    text = json.dumps({**data, rng.choice(("notes", "colour", "phases")): _HUGE_TEXT})
    nested = "[" * deep + "]" * deep if rng.random() < 0.5 else '{"a":' * deep + "1" + "}" * deep
    return text.replace(f'"{_HUGE_TEXT}"', nested)


# -- and how it is heard --------------------------------------------------------------------------
def _says(lie: Lie, also: Callable[[FaultContext], None] | None = None) -> Fault:
    def arm(arms: FaultContext) -> None:
        rng = arms.rng
        last: tuple[contract.AgentReport | None, str] = None, ""

        def hear(report: contract.AgentReport) -> contract.AgentReport | None:
            nonlocal last
            arms.world.observed(arms.number)
            if report is not last[0]:
                last = report, contract.dump(report)
            told, wrong = _accepted(lie(json.loads(last[1]), rng))
            for why in wrong:
                arms.world.fail("I9", why)
            return told

        def strike() -> None:
            arms.world.knobs.lies.append(hear)
            if also is not None:
                also(arms)

        arms.strike(arms.some_time(0.0, 1.0), "a pod lies", strike)

    return arm


@lru_cache(maxsize=128)
def _accepted(text: str) -> tuple[contract.AgentReport | None, tuple[str, ...]]:
    """Return the report as it is read, None where it is refused, and why it should have been."""
    try:
        told = contract.load_report(text)
    except contract.ContractError:
        return None, ()
    why = unsound(told)
    wrong = [f"a pod's word was accepted: {why}"] if why else []
    for name in map(pull_name, worth_saving(told.kept)):
        if name.count("/") or len(name) > 200:
            wrong.append(f"{name!r} is part of an id")
    return told, tuple(wrong)


def _judge(arms: FaultContext, accepted: Any) -> None:
    why = unsound(accepted)
    if why:
        arms.world.fail("I9", f"a pod's word was accepted: {why}")


def _offer_files(arms: FaultContext) -> None:
    """The other files that come from a pod, or lie on one: manifests, heartbeats, notes, grants."""
    rng = arms.rng
    made = asdict(make_manifest("r-1", "fast", 3, 1.0, 1.5, 0))
    beat = {"run_id": "r-1", "phase": "fast", "attempt": 1, "pid": 7, "pid_started": "1", "at": 5.0,
            "state": "training", "step": 3, "steps": 9, "version": 1}  # fmt: skip
    kept = _kept({"phases": []}, rng)
    uploads = {
        "uploaded": [kept],
        "given_up": [],
        "moved_boot": 1.0,
        "fetched": True,
        "trouble": "",
    }
    grants = {"pod_name": "p", "until": 5.0, "phases": {}, "puts": {}, "gets": [], "version": 1}
    for record, load in ((made, _manifest), (beat, load_heartbeat),
                         (uploads, load_uploads), (grants, load_grants)):  # fmt: skip
        for _ in range(4):
            data: dict[str, Any] = json.loads(json.dumps(record))
            inner = [row for rows in data.values() if isinstance(rows, list) for row in rows]
            holder = rng.choice([data, *(row for row in inner if isinstance(row, dict))])
            holder[rng.choice(list(holder))] = _HUGE_TEXT
            odd = rng.choice((*_NUMBERS, *map(json.dumps, _NAMES)))
            try:
                told = load(json.dumps(data).replace(f'"{_HUGE_TEXT}"', odd))
            except contract.ContractError:
                continue
            _judge(arms, told)


def _manifest(text: str) -> mf.CheckpointManifest:
    try:
        made = mf.from_json(text, "a pod")
    except CheckpointError as error:
        raise contract.ContractError(error.what) from None
    names = [file.name for file in made.files]
    weights = sum(file.kind == "weights" for file in made.files)
    if len(set(names)) < len(names) or weights != 1 or made.size_bytes >= 1 << 63:
        raise AssertionError("an invalid manifest was accepted")
    return made


def _offer_metrics(arms: FaultContext) -> None:
    """Lines of metrics, words of a protocol, and text for a terminal."""
    rng = arms.rng
    rows = [f'{{"kind": "{kind}", "step": 1, "grad_norm": {number}, "val_bpb": {number}, '
            f'"val_step_losses": [5.0, {number}]}}' for number in _NUMBERS
            for kind in ("train", "eval")]  # fmt: skip
    rows += [
        '{"kind": "eval", "deep": ' + "[" * 40 + "]" * 40 + "}",
        "[" * 20_000,
        '{"a":' * 3000,
        "[]",
        "5",
        "{",
        "",
        '{"kind": []}',
        '{"a": 1, "a": 2}',
    ]
    rng.shuffle(rows)
    read = list(parse_lines(row.encode() for row in rows))
    _judge(arms, [{**row, "step": 1} for row in read])
    verdict = gate.judge("fast", read)
    if gate.verdict_from_json(json.loads(json.dumps(verdict.to_json()))) != verdict:
        arms.world.fail("I9", "a verdict is read as another")
    for word in (*_NUMBERS, "\u00b2", "\u0663", "", " 1", "+1", "1_0"):
        size = whole(word)
        if size is not None and not (0 <= size < 1 << 63 and word.strip("0123456789") == ""):
            arms.world.fail("I9", f"{word:.30} is read as a size")
    shown = one_line(_STEER)
    if any(ord(c) < 32 or 127 <= ord(c) < 160 or 0xD800 <= ord(c) < 0xE000 for c in shown):
        arms.world.fail("I9", "control characters reach the terminal")
    if set(shown) & {"\u202e", "\u2066", "\ufeff"}:
        arms.world.fail("I9", "what turns the direction of text reaches the terminal")


def _uploads_more(arms: FaultContext) -> None:
    """Let a host use its signed requests as long as they are valid, whether or not the pod lives;
    one host does, or every one that is given any. The process that finds the excess may be killed
    at that moment. Who finds that may be killed right there."""
    if arms.rng.random() < 0.3:
        point = arms.rng.choice(("BucketSwept.before", "BucketSwept.after", "bucket"))
        arms.trap(point, "kill", skip=arms.rng.choice((0, 0, 1)), kinds=LOOKING_AFTER)
    if arms.rng.random() < 0.5:
        _every_host_uploads_more(arms)
        return
    world, rng = arms.world, arms.rng
    size_bytes = rng.randrange(1 << 30, 5 << 30)
    again, early = rng.random() < 0.5, rng.random()
    down_s = rng.uniform(60, 7200) if rng.random() < 0.3 else 0.0

    def strike(rented: RentedMachine) -> None:
        grants = rented.pod.uploader.grants
        if grants is None or world.knobs.pod_api_down_until > world.queue.now:
            return
        _store(arms, rented, size_bytes)
        left_s = grants.until - world.queue.now
        if again and left_s > 0:
            after_s = left_s * (1.0 if early < 0.3 else early)
            world.queue.after(after_s, partial(_store, arms, rented, size_bytes))
        if down_s and left_s > 0:
            # The bucket is down when it is first due.
            world.queue.after(left_s + 0.1, lambda: arms.from_now("bucket_down_until", down_s))

    arms.strike_pod(arms.some_time(0.1, 1.0), "turns on its bucket", strike)


def _every_host_uploads_more(arms: FaultContext) -> None:
    """Let every host do so, that of a resumed run too: sometimes when the run is over again, since
    the host has ended its pod long before its requests expire."""
    world, rng = arms.world, arms.rng
    vanishes = rng.random() < 0.5

    def turn(rented: RentedMachine) -> None:
        grants = rented.pod.uploader.grants
        assert grants is not None
        world.fire(arms.number, f"{rented.pod_id} turns on its bucket")
        if vanishes:
            after_s = max(0.0, grants.until - world.queue.now) * 0.3 * rng.random()
            world.queue.after(after_s, partial(rented.account.host_lost, rented, "host lost"))
        for _ in range(2):
            # Late rather than early: a run is often over long before its requests are.
            after_s = max(0.0, grants.until - world.queue.now) * rng.random() ** 0.5
            size_bytes = rng.randrange(1 << 30, 5 << 30)
            world.queue.after(after_s, partial(_store, arms, rented, size_bytes))

    world.knobs.turns.append(turn)


def _store(arms: FaultContext, rented: RentedMachine, size_bytes: int) -> None:
    world, run_id = arms.world, rented.run_id
    if world.queue.now < world.knobs.bucket_down_until:
        return
    key = f"{run_id}/{rented.name}/manifest.json"
    world.files.put_oversized(OversizedObject(run_id, key, size_bytes, world.queue.now))
    world.say(f"{size_bytes / 1e9:.1f} GB are stored without a grant")


FAULTS: dict[str, tuple[str, Fault]] = {
    "65": ("lying sizes", _says(_lying_sizes, _offer_files)),
    "66": ("garbage for a report", _says(_garbage, _offer_much)),
    "67": ("an invalid verdict", _says(_bad_gate)),
    "68": ("checkpoints that do not exist", _says(_fake_kept, _offer_files)),
    "69": ("hostile names", _says(_hostile_names, _offer_files)),
    "70": ("nested too deep", _says(_too_deep, _offer_metrics)),
    "74": ("more uploaded than granted", _uploads_more),
}
