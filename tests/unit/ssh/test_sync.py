"""Answers of a pod over SSH: lines of base64."""

from __future__ import annotations

import base64
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.core.manifests import manifest
from tests.unit.core.phases import BEAT
from tests.unit.core.test_pod_contract import REPORT
from trmcloud.adapters.ssh import sync
from trmcloud.adapters.ssh.sync import Mirror
from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.contract.manifest import to_json
from trmcloud.core.contract.trainer_contract import load_heartbeat

# -- sync ---------------------------------------------------------------------------------------
# What a pod's answer becomes here: lines of base64, each with a name that was asked for.
# ``tests/contract/test_ssh_link.py`` has a real shell give the answers; here they are given by
# hand.


POD, RUN = "trmc-x", "r-1"
AGENT = replace(REPORT, pod_name=POD, run_id=RUN)
HEART = replace(BEAT, run_id=RUN, phase="fast")
LOG, METRICS = "train.log", "metrics.jsonl"
STEP, VERSION = "step-00000120", "5-1790000000"
MANIFEST = to_json(manifest()).encode()


def coded(content: bytes | str) -> str:
    return base64.b64encode(content.encode() if isinstance(content, str) else content).decode()


class Here:
    def __init__(self, home: Path) -> None:
        self.home, self.mirror = home, Mirror(home, POD, RUN)

    def take(self, *lines: str, **asked: int) -> Any:
        answer = "\n".join((*lines, "")).encode("ascii", "surrogateescape")
        return self.mirror.take(answer, asked)

    def grown(self, name: str, size: Any, new: bytes, start: int | None = 0) -> None:
        label = f"{name}/fast"
        self.mirror.take(
            f"{label} {size} {coded(new)}\n".encode(), {} if start is None else {label: start}
        )

    def file(self, name: str, phase: str = "fast") -> bytes | None:
        path = self.home / "runs" / RUN / phase / name
        return path.read_bytes() if path.exists() else None

    def files(self) -> list[str]:
        return sorted(str(p.relative_to(self.home)) for p in self.home.rglob("*") if p.is_file())


@pytest.fixture
def here(tmp_path: Path) -> Here:
    return Here(tmp_path)


# -- what is asked -----------------------------------------------------------------------------


def test_everything_is_asked_for_from_where_we_have_it(here: Here) -> None:
    labels = [f"{LOG}/fast", f"{METRICS}/fast", f"{LOG}/extreme", f"{METRICS}/extreme"]
    offsets = here.mirror.offsets()
    assert set(labels) <= set(offsets)
    assert set(offsets.values()) == {0}
    here.grown(LOG, 300, b"x" * 300)
    assert here.mirror.offsets()[f"{LOG}/fast"] == 44
    here.take(f"manifest/fast {STEP} {VERSION} {coded(MANIFEST)}")
    question = here.mirror.question("/work space", {f"{LOG}/fast": 44})
    assert "ROOT='/work space'\n" in question
    assert f"POD={POD}\nRUN={RUN}\nKNOWN=fast/{STEP}.{VERSION}\nMOST=16\n" in question
    assert "\nsmall heartbeat/fast runs/$RUN/fast/heartbeat.json\n" in question
    assert "\nmanifests extreme\n" in question
    assert f"\ngrown {LOG}/fast runs/$RUN/fast/{LOG} 44 1048576\n" in question
    assert question.endswith("\nexit 0\n")


def test_what_has_grown_as_large_as_is_kept_is_asked_for_no_more(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sync._MAX_KEPT_BYTES, LOG, 300)
    here.grown(LOG, 299, b"x" * 299)
    assert here.mirror.offsets()[f"{LOG}/fast"] == 43
    here.grown(LOG, 300, b"x" * 257, 43)
    assert f"{LOG}/fast" not in here.mirror.offsets()


# -- reports -----------------------------------------------------------------------------------


def test_the_agents_report_is_kept_and_given(here: Here) -> None:
    assert here.take(f"agent {coded(contract.dump(AGENT))}") == AGENT
    assert here.files() == [f"pods/{POD}/agent.json"]
    kept = (here.home / "pods" / POD / "agent.json").read_text()
    assert contract.load_report(kept) == AGENT
    assert here.take() is None


@pytest.mark.parametrize(
    "line",
    [
        "agent", f"agent {coded('{}')}", "agent !!!", "agent x y", f"agent {coded('[' * 9000)}",
        f"agent {coded(contract.dump(replace(AGENT, pod_name='trmc-y')))}",
        f"agent {coded(contract.dump(replace(AGENT, run_id='r-2')))}",
        f"agent {coded(contract.dump(AGENT))} more",
        f"agents {coded(contract.dump(AGENT))}",
    ],
)  # fmt: skip
def test_a_report_that_is_none_of_this_pods_is_none(here: Here, line: str) -> None:
    assert here.take(line) is None
    assert here.files() == []


def test_the_last_report_counts_and_one_that_is_none_hides_no_other(here: Here) -> None:
    later = replace(AGENT, message="later")
    lines = [f"agent {coded(contract.dump(report))}" for report in (AGENT, later)]
    assert here.take(*lines) == later
    assert here.take(lines[0], "agent !!!") == AGENT


def test_a_heartbeat_is_kept_where_it_is_the_runs_and_the_phases(here: Here) -> None:
    text = coded(contract.dump(HEART))
    other = coded(contract.dump(replace(HEART, run_id="r-2")))
    here.take(f"heartbeat/extreme {text}", f"heartbeat/fast {other}", f"heartbeat/other {text}",
              f"heartbeat/fast {text} more", "heartbeat/fast !!!", "heartbeat/fast")  # fmt: skip
    assert here.file("heartbeat.json", "extreme") is None
    assert here.file("heartbeat.json") is None
    here.take(f"heartbeat/fast {text}")
    assert load_heartbeat(here.file("heartbeat.json") or b"") == HEART


# -- what grows --------------------------------------------------------------------------------


def test_what_is_new_is_appended_once(here: Here) -> None:
    here.grown(LOG, 5, b"hello")
    here.grown(LOG, 11, b"hello world")
    assert here.file(LOG) == b"hello world"
    here.grown(LOG, 11, b"hello world")
    assert here.file(LOG) == b"hello world"
    long = b"hello world" + b"x" * 500
    here.grown(LOG, 511, long)
    here.grown(LOG, 514, long[-256:] + b"new", 511 - 256)
    assert here.file(LOG) == long + b"new"


def test_what_was_not_asked_for_is_not_taken(here: Here) -> None:
    here.grown(LOG, 5, b"hello", None)
    here.grown("other.log", 5, b"hello")
    here.mirror.take(f"{LOG}/fast 5 {coded(b'hello')} more\n".encode(), {f"{LOG}/fast": 0})
    here.mirror.take(f"{LOG}/fast {coded(b'hello')}\n".encode(), {f"{LOG}/fast": 0})
    for size in ("x", "-5", "9" * 25):
        here.grown(LOG, size, b"hello")
    assert here.files() == []


def test_more_than_was_asked_for_is_not_taken(here: Here) -> None:
    here.grown(LOG, 1 << 21, b"x" * ((1 << 20) + 1))
    assert here.file(LOG) is None
    here.grown(LOG, 1 << 21, b"x" * (1 << 20))
    assert len(here.file(LOG) or b"") == 1 << 20


def test_what_was_rewritten_there_is_brought_from_its_beginning(here: Here) -> None:
    for size, new in ((4, b"hell"), (9, b"jello wor")):
        here.grown(LOG, 5, b"hello")
        here.grown(LOG, size, new)
        assert here.file(LOG) == b"hello", "not before all of it is asked for"
        assert here.mirror.offsets()[f"{LOG}/fast"] == 0
        here.grown(LOG, size, new)
        assert here.file(LOG) == new
        here.grown(LOG, size + 1, new + b"!")
        assert here.file(LOG) == new + b"!"
        (here.home / "runs" / RUN / "fast" / LOG).unlink()


def test_what_another_process_has_brought_meanwhile_is_left(here: Here) -> None:
    here.grown(LOG, 600, b"x" * 600)
    here.grown(LOG, 300, b"y" * 300, 343)
    assert here.file(LOG) == b"x" * 600
    assert here.mirror.offsets()[f"{LOG}/fast"] == 344, "and nothing is asked for again"


def test_a_link_in_its_place_is_not_written_through(here: Here) -> None:
    folder = here.home / "runs" / RUN / "fast"
    folder.mkdir(parents=True)
    (here.home / "mine").write_text("mine")
    (folder / LOG).symlink_to(here.home / "mine")
    here.grown(LOG, 9, b"mine, too")
    assert (here.home / "mine").read_text() == "mine"


# -- manifests ---------------------------------------------------------------------------------


def kept(here: Here) -> list[str]:
    folder = here.home / "runs" / RUN / "fast" / "manifests"
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def sent(step: int, version: str = VERSION, **changes: Any) -> str:
    text = to_json(manifest(step, **changes))
    return f"manifest/fast step-{step:08d} {version} {coded(text)}"


def test_manifests_follow_what_the_pod_has(here: Here) -> None:
    here.take(sent(120), sent(240))
    assert kept(here) == [f"step-00000120.{VERSION}.json", f"step-00000240.{VERSION}.json"]
    here.take(f"manifest/fast step-00000240 {VERSION}")
    assert len(kept(here)) == 2, "not all of them were told"
    here.take(f"manifest/fast step-00000240 {VERSION}", "manifests/extreme")
    assert len(kept(here)) == 2
    here.take(f"manifest/fast step-00000240 {VERSION}", "manifests/fast more")
    assert len(kept(here)) == 2
    here.take(f"manifest/fast step-00000240 {VERSION}", "manifests/fast")
    assert kept(here) == [f"step-00000240.{VERSION}.json"]
    here.take("manifests/fast")
    assert kept(here) == []


def test_a_manifest_that_was_replaced_there_replaces_ours(here: Here) -> None:
    here.take(sent(120))
    here.take(sent(120, "6-1790000009", bpb=1.25), "manifests/fast")
    assert kept(here) == ["step-00000120.6-1790000009.json"]


@pytest.mark.parametrize(
    "line",
    [
        f"manifest/fast {STEP} {VERSION} !!!",
        f"manifest/fast {STEP} {VERSION} {coded('{}')}",
        f"manifest/fast ../x {VERSION} {coded(MANIFEST)}",
        f"manifest/fast step-120 {VERSION} {coded(MANIFEST)}",
        f"manifest/fast step-00000121 {VERSION} {coded(MANIFEST)}",
        f"manifest/fast {STEP} ../../x {coded(MANIFEST)}",
        f"manifest/fast {STEP} 5 {coded(MANIFEST)}",
        f"manifest/fast {STEP} {VERSION} {coded(MANIFEST)} more",
        f"manifest/fast {STEP}",
        f"manifest/extreme {STEP} {VERSION} {coded(MANIFEST)}",
        f"manifest/other {STEP} {VERSION} {coded(MANIFEST)}",
        sent(120, run_id="r-2"),
    ],
)
def test_a_manifest_that_is_none_of_this_place_is_not_kept(here: Here, line: str) -> None:
    here.take(line)
    assert here.files() == []


def test_no_more_manifests_are_taken_than_were_asked_for(here: Here) -> None:
    here.take(*(sent(step) for step in range(1, 20)))
    assert len(kept(here)) == 16
    here.take(f"manifest/fast step-00000001 {VERSION}", *(sent(s) for s in range(17, 20)))
    assert len(kept(here)) == 19, "those that are only named do not count"


def test_a_pod_cannot_fill_the_disk_with_manifests(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sync, "MOST_MANIFESTS", 3)
    here.take(*(sent(step) for step in range(1, 6)))
    assert [name[:13] for name in kept(here)] == [f"step-0000000{n}" for n in (3, 4, 5)]
    size = len(to_json(manifest(5)))
    monkeypatch.setattr(sync, "MAX_MANIFESTS_BYTES", 2 * size)
    here.take(sent(5))
    assert [name[:13] for name in kept(here)] == ["step-00000004", "step-00000005"]


def test_lines_beyond_any_answer_are_not_read(here: Here) -> None:
    report = f"agent {coded(contract.dump(AGENT))}"
    assert here.take(*["x"] * 8191, report) == AGENT
    assert here.take(*["x"] * 8192, report) is None
    assert here.take("\udcff\udcfe agent", report) == AGENT


# -- words that are not quite those ------------------------------------------------------------


def test_each_word_is_taken_under_its_own_name_alone(here: Here) -> None:
    here.take(f"manifest/fast {STEP} {VERSION} {coded(MANIFEST)}")
    before = here.files()
    beat, text = coded(contract.dump(HEART)), sent(240).split()[-1]
    here.take(f"pulse/fast {beat}", f"other/fast step-00000240 {VERSION} {text}", "other/fast")
    assert here.files() == before


@pytest.mark.parametrize(
    "text", ["!!!", coded(b"hello") + "!", coded(b"hello")[:-1], "aGVsbG8=aGVs"]
)
def test_text_that_is_no_base64_is_nothing(here: Here, text: str) -> None:
    here.mirror.take(f"{LOG}/fast 5 {text}\n".encode(), {f"{LOG}/fast": 0})
    assert here.file(LOG) == b""


def test_a_pod_that_contradicts_itself_is_asked_again_for_all(here: Here) -> None:
    long = b"".join(b"%d," % n for n in range(200))
    here.grown(LOG, len(long), long)
    start = len(long) - 256
    here.grown(LOG, len(long), long[start:], start)
    assert here.mirror.offsets()[f"{LOG}/fast"] == start, "nothing is new, and nothing is wrong"
    here.grown(LOG, len(long) - 1, long[start:] + b"more", start)
    assert here.file(LOG) == long
    assert here.mirror.offsets()[f"{LOG}/fast"] == 0


def test_what_is_kept_is_the_users_and_no_handle_stays_open(here: Here) -> None:
    mask = os.umask(0o022)
    try:
        here.grown(LOG, 5, b"hello")
    finally:
        os.umask(mask)
    path = here.home / "runs" / RUN / "fast" / LOG
    assert path.stat().st_mode & 0o777 == 0o644
    before = len(os.listdir("/proc/self/fd"))
    for size in range(6, 40):
        here.grown(LOG, size, b"hello" + b"x" * (size - 5))
        here.grown(LOG, 1, b"y")
        here.mirror._again.clear()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_byte_too_many_is_too_many(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    size = len(to_json(manifest(5)))
    for room, left in ((2 * size, 2), (2 * size - 1, 1)):
        monkeypatch.setattr(sync, "MAX_MANIFESTS_BYTES", room)
        here.take(sent(4), sent(5))
        assert len(kept(here)) == left


def test_what_another_process_took_is_gone(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    ghost = (STEP, VERSION, here.home / "taken-away")
    monkeypatch.setattr(Mirror, "_kept_manifests", lambda self, phase: [ghost])
    assert here.take("manifests/fast") is None
