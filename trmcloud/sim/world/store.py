"""The checkpoints of a world, which outlive pods: manifests and the bits they stand for."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from trmcloud.core.contract.manifest import CheckpointFile, CheckpointManifest
from trmcloud.core.contract.pod_contract import AgentReport, CheckpointRef
from trmcloud.core.contract.records import dump
from trmcloud.core.contract.trainer_contract import Heartbeat
from trmcloud.core.control.budget import LedgerState
from trmcloud.core.control.events import RunEvent
from trmcloud.core.control.run_state import RunState
from trmcloud.core.errors import CheckpointError
from trmcloud.core.values import replace


@dataclass(eq=False)
class Checkpoint:
    """A manifest, and which bits are really there: ``bits`` is their hash, '' where torn."""

    manifest: CheckpointManifest
    bits: str
    true_bpb: float
    readable: bool = True
    """Whether the manifest itself can be read."""
    pod_id: str = ""
    """The pod on whose own disk it lies; '' where it lies on what outlives pods."""
    home: bool = True
    """Whether there is a copy where the run's files are kept."""

    slot: str = ""
    """The slot of the bucket where it is whole; '' where it is not there."""
    evaluated: bool = False
    """Whether its trainer is through with it: ``manifest`` has the metric then, if it came to one.
    """
    scored: set[str] = field(default_factory=set)
    """The places whose copy of the manifest has the metric, too: home, slot."""

    @cached_property
    def kept(self) -> CheckpointRef:
        """As its pod's agent tells of it."""
        return self.manifest.ref

    @cached_property
    def sha256(self) -> str:
        return self.manifest.sha256

    @cached_property
    def label(self) -> str:
        return self.manifest.label

    @property
    def whole(self) -> bool:
        return self.readable and self.bits == self.sha256

    def score(self, bpb: float | None) -> None:
        """Its trainer has evaluated it, and put the metric into the manifest beside it."""
        self.evaluated = True
        if bpb is not None:
            self._rewrite(bpb)
            self.true_bpb = bpb
            if not self.pod_id:
                self.scored.add("home")

    def seen(self, place: str) -> CheckpointManifest:
        """The manifest as its copy at home or in its slot is: it may be from before the metric."""
        return self.manifest if self.is_current(place) else self._unscored

    def is_current(self, place: str) -> bool:
        """Whether the copy there is the one that is on the pod."""
        return place in self.scored or self.manifest.val_bpb is None

    def bpb(self, place: str) -> float | None:
        """The metric that the copy there has."""
        return self.manifest.val_bpb if place in self.scored else None

    @cached_property
    def _unscored(self) -> CheckpointManifest:
        return replace(self.manifest, val_bpb=None)

    def leave(self) -> None:
        """Its pod is gone: what was not copied is lost, the metric too."""
        self.pod_id = ""
        if not self.scored:
            self._rewrite(None)
            self.true_bpb = math.nan

    def _rewrite(self, bpb: float | None) -> None:
        self.manifest = replace(self.manifest, val_bpb=bpb)
        for name in ("kept", "_unscored"):
            self.__dict__.pop(name, None)


@dataclass
class OversizedObject:
    """An object beyond what was granted, stored at true epoch second ``at``."""

    run_id: str
    key: str
    size_bytes: int
    at: float
    deleted_at: float | None = None

    def is_owed(self, ledger: LedgerState) -> bool:
        """Whether it still has to be deleted: its run is over, nobody can add to it, and the ledger
        knows that its pod had an agent, and so grants."""
        run = ledger.runs.get(self.run_id)
        if self.deleted_at is not None or run is None or run.live:
            return False
        return any(g.agent_at is not None for g in run.generations)


def hash_of(run_id: str, phase: str, step: int, lineage: int) -> str:
    """Sixty-four hex digits that stand for a checkpoint's bits."""
    seed = f"{run_id}/{phase}/{step}/{lineage}".encode().hex()
    return (seed * (64 // len(seed) + 1))[:64]


def make_manifest(
    run_id: str,
    phase: str,
    step: int,
    at: float,
    bpb: float | None,
    lineage: int,
    cooldown_from: int | None = None,
) -> CheckpointManifest:
    sha256 = hash_of(run_id, phase, step, lineage)
    return CheckpointManifest(
        run_id=run_id,
        phase=phase,
        step=step,
        tokens=step * 1000,
        created_at=at,
        recipe="sim",
        settings={},
        world_size=1,
        val_bpb=bpb,
        step_losses=(),
        cooled=False,
        data_sha256="",
        tokenizer_sha256="",
        files=(
            CheckpointFile("weights.safetensors", "weights", 1_000_000, sha256),
            CheckpointFile("optimizer.safetensors", "optimizer", 1_000_000, sha256),
        ),
        cooldown_from=cooldown_from,
    )


class SimNotes:
    """``RunNotes`` in memory, of launches alone."""

    def __init__(self, launches: Mapping[str, Mapping[str, Any]] | None = None) -> None:
        self._launches = dict(launches or {})
        self.launch = self._launches.__getitem__
        self.put_launch = self._launches.__setitem__

    def drop_launch(self, run_id: str) -> None:
        self._launches.pop(run_id, None)

    def add_machine(self, run: RunState, report: AgentReport) -> None:
        pass

    def add_creates(self, run: RunState | None, events: Iterable[RunEvent], now: float) -> None:
        pass


class SimFiles:
    """``RunFiles`` over checkpoints that are kept in memory; every read verifies."""

    def __init__(self) -> None:
        self.checkpoints: dict[str, list[Checkpoint]] = {}
        self.made = 0
        """The number of all that were ever made: those that are trained again have other bits."""
        self.words: dict[tuple[str, int], AgentReport] = {}
        """The last report that the agent of a run's generation put into the bucket."""
        self.paces: dict[tuple[str, str], list[Mapping[str, object]]] = {}
        """By run and phase, the lines in which trainers have told their pace."""
        self._word_texts: dict[tuple[str, int], tuple[AgentReport, bytes]] = {}
        self.oversized: list[OversizedObject] = []
        """All that hostile hosts ever put into the bucket beyond what they were granted."""
        self.refresh: Callable[[str], None] = lambda run_id: None
        """Called before a look, so that a trainer's latest saves are there."""
        self.progress: Callable[[str, str], list[Mapping[str, object]]] = lambda *phase: []
        """Lines of a run's training in a phase as far as it has come."""

    def is_elsewhere(self, run_id: str) -> bool:
        return False

    def add(self, run_id: str, made: Checkpoint) -> None:
        self.made += 1
        kept = self.checkpoints.setdefault(run_id, [])
        same = [c for c in kept if c.label == made.label]
        for old in same:
            kept.remove(old)
        kept.append(made)

    def on_pod(self, run_id: str, pod_id: str) -> list[CheckpointManifest]:
        """Return the manifests that a pod's agent lists of its own disk."""
        kept = self.checkpoints.get(run_id, ())
        return [c.manifest for c in kept if c.pod_id == pod_id and c.readable]

    def kept_on(self, run_id: str, pod_id: str) -> tuple[CheckpointRef, ...]:
        """The same, as the agent tells of it."""
        made = self.checkpoints.get(run_id, ())
        return tuple(c.kept for c in made if c.pod_id == pod_id and c.readable)

    def bring_home(self, run_id: str, pod_id: str, wanted: CheckpointManifest) -> None:
        """The copy is verified: bits that are not what the manifest says stay where they are."""
        for made in self.checkpoints.get(run_id, ()):
            same = (made.label, made.sha256) == (wanted.label, wanted.sha256)
            if same and made.pod_id == pod_id:
                if not made.whole:
                    raise CheckpointError(f"{wanted.label} is not what its manifest says")
                made.home = True
                if wanted.val_bpb is not None:
                    made.scored.add("home")
                return
        raise CheckpointError(f"{wanted.label} is not there any more")

    def is_sound(self, run_id: str, kept: CheckpointRef) -> bool:
        """Whether the bits on the pod are those that its manifest names."""
        found = self._find(run_id, kept)
        return found is not None and found.whole

    def store(self, run_id: str, kept: CheckpointRef, slot: str) -> None:
        """It is whole in the bucket now, under its manifest."""
        found = self._find(run_id, kept)
        if found is not None:
            found.slot, found.home = slot, True
            if kept.val_bpb is not None:
                found.scored |= {"slot", "home"}

    def overwrite(self, run_id: str, phase: str, slot: str) -> None:
        """A slot in the bucket is written to, by whomever: what it held is there no more."""
        for found in tuple(self.checkpoints.get(run_id, ())):
            if found.manifest.phase == phase and found.slot == slot:
                found.slot, found.home = "", False
                found.scored.clear()
                if not found.pod_id:
                    self.checkpoints[run_id].remove(found)

    def in_slots(self, run_id: str, phase: str, slots: Sequence[str]) -> dict[str, CheckpointRef]:
        made = self.checkpoints.get(run_id, ())
        return {
            c.slot: m.ref
            for c in made
            if c.slot in slots and (m := c.seen("slot")).phase == phase and c.readable
        }

    def furthest_stored(self, run_id: str) -> dict[str, int]:
        """By the truth: of each phase the latest step that is whole in the bucket."""
        steps: dict[str, int] = {}
        for made in self.checkpoints.get(run_id, ()):
            if made.slot and made.whole:
                phase = made.manifest.phase
                steps[phase] = max(made.manifest.step, steps.get(phase, 0))
        return steps

    def cooled_without(self, run_id: str, fetched: set[str]) -> set[str]:
        """By the truth: labels of what is whole in the bucket and not ``fetched``, though the
        cooldown of the furthest that is fetched began with it."""
        made = [c for c in self.checkpoints.get(run_id, ()) if c.slot and c.whole]
        brought: dict[str, CheckpointManifest] = {}
        for manifest in sorted((c.manifest for c in made), key=lambda m: m.step):
            if manifest.sha256 in fetched:
                brought[manifest.phase] = manifest
        began = {(m.phase, m.cooldown_from) for m in brought.values()}
        wanted = [c.manifest for c in made if (c.manifest.phase, c.manifest.step) in began]
        steps = {(m.phase, m.step) for m in wanted if m.sha256 in fetched}
        return {m.label for m in wanted if (m.phase, m.step) not in steps}

    def stored(self, run_id: str) -> list[CheckpointManifest]:
        """Return what a list of the bucket shows as whole: an unreadable manifest is none."""
        made = self.checkpoints.get(run_id, ())
        return [c.seen("slot") for c in made if c.slot and c.readable]

    def oversized_of(self, run_id: str) -> list[OversizedObject]:
        """Return those of a run that are still there."""
        return [o for o in self.oversized if o.run_id == run_id and o.deleted_at is None]

    def put_oversized(self, stored: OversizedObject) -> None:
        """A second one under its key takes the place of the first, which was paid for until now."""
        for each in self.oversized_of(stored.run_id):
            if each.key == stored.key:
                each.deleted_at = stored.at
        self.oversized.append(stored)

    def drop_oversized(self, key: str, at: float) -> int:
        """Delete what is there under a key; return how many objects that were."""
        found = [o for o in self.oversized if o.key == key and o.deleted_at is None]
        for each in found:
            each.deleted_at = at
        return len(found)

    def last_word(self, run_id: str, generation: int) -> bytes | None:
        """Return the text in the bucket of a report among ``words``."""
        place = run_id, generation
        word = self.words.get(place)
        if word is None:
            return None
        known = self._word_texts.get(place)
        if known is None or known[0] is not word:
            known = self._word_texts[place] = word, dump(word).encode()
        return known[1]

    def _find(self, run_id: str, kept: CheckpointRef) -> Checkpoint | None:
        for made in self.checkpoints.get(run_id, ()):
            if made.kept.bits == kept.bits:
                return made
        return None

    def lose_pod(self, run_id: str, *, pod_id: str) -> None:
        """A pod's own disk ends with it; copies remain."""
        kept = self.checkpoints.get(run_id, [])
        kept[:] = [c for c in kept if c.pod_id != pod_id or c.home]
        for made in kept:
            if made.pod_id == pod_id:
                made.leave()

    def lose_volume(self, run_id: str) -> None:
        """Nothing but what is in the bucket remains."""
        kept = self.checkpoints.pop(run_id, [])
        stored = [made for made in kept if made.slot]
        if stored:
            self.checkpoints[run_id] = stored

    def whole(self, run_id: str, phase: str) -> list[Checkpoint]:
        kept = self.checkpoints.get(run_id, ())
        return [c for c in kept if c.manifest.phase == phase and c.whole]

    # -- the port -----------------------------------------------------------------------------

    def phases(self, run_id: str) -> Sequence[str]:
        return sorted({m.phase for m in self.manifests(run_id)}, reverse=True)

    def heartbeat(self, run_id: str, phase: str) -> Heartbeat | None:
        return None

    def metrics(self, run_id: str, phase: str) -> Sequence[Mapping[str, object]]:
        paces = self.paces.get((run_id, phase), [])
        return [*paces, *self.progress(run_id, phase)] if paces else paces

    def manifests(self, run_id: str) -> Sequence[CheckpointManifest]:
        self.refresh(run_id)
        kept = self.checkpoints.get(run_id, ())
        return [c.seen("home") for c in kept if c.readable and c.home]

    def damaged(self, run_id: str) -> Sequence[tuple[str, str]]:
        kept = self.checkpoints.get(run_id, ())
        return [(c.manifest.label, "not JSON") for c in kept if not c.readable]

    def fetch(
        self,
        manifest: CheckpointManifest,
        names: Sequence[str],
        into: str,
        progress: Callable[[int, int], None],
    ) -> None:
        kept = self.checkpoints.get(manifest.run_id, ())
        found = next((c for c in kept if c.manifest.label == manifest.label), None)
        if found is None or not found.home:
            raise CheckpointError(f"{manifest.label} is missing")
        if found.bits != manifest.sha256:
            raise CheckpointError(f"{manifest.label} is damaged")

    def delete(self, manifest: CheckpointManifest) -> None:
        """The copy here goes; what lies on a pod or in the bucket stays there."""
        kept = self.checkpoints.get(manifest.run_id, [])
        kept[:] = [c for c in kept if c.manifest.label != manifest.label or c.pod_id or c.slot]
        for made in kept:
            made.home = made.home and (made.manifest.label != manifest.label or bool(made.slot))

    def folder_of(self, manifest: CheckpointManifest) -> str:
        return f"/sim/{manifest.run_id}/{manifest.label}"

    def folder(self, run_id: str) -> str:
        return f"/sim/{run_id}"

    def logs(self, run_id: str, phase: str) -> str:
        return f"/sim/{run_id}/{phase}/train.log"
