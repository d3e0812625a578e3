"""Faults 43–64, 71, 72 and 78: checkpoints, links, disks, trainers, guards, and hostile words."""

from __future__ import annotations

import random

from trmcloud.core.contract import manifest as mf
from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.errors import CheckpointError, ConflictError, NotFoundError, NotSupported
from trmcloud.core.values import replace
from trmcloud.operations.checkpoints.saving import request_save
from trmcloud.sim.faults.arm import Fault, FaultContext, answer
from trmcloud.sim.world.account import Observer, RentedMachine
from trmcloud.sim.world.controllers import Process
from trmcloud.sim.world.trainer import TrainerFault


def _damage(number: str) -> Fault:
    def arm(arms: FaultContext) -> None:
        at, knobs = arms.some_time(0, 0.8), arms.world.knobs
        arms.strike(at, "a checkpoint will be damaged", lambda: knobs.next_damages.append(number))

    return arm


def _pod_disk_full(arms: FaultContext) -> None:
    arms.set_knob("pod_disk_full", True, "the pod's disk is full", arms.some_time(0.02, 0.9))


def _store_fails(arms: FaultContext) -> None:
    """A fetch that fails though it succeeded, and a store that is down for pods and laptops."""
    answer("fetch_fails", arms.number, "the store fails after success")(arms)
    seconds = arms.rng.uniform(30, 7200)
    arms.for_a_while("bucket_down_until", arms.some_time(0.0, 1.05), seconds, "the store is down")


def _stale_pointer(arms: FaultContext) -> None:
    """A list of checkpoints lacks the newest: what is chosen must still be whole."""

    def stale() -> None:
        for run_id, kept in arms.world.files.checkpoints.items():
            if len(kept) > 1:
                kept[-1].readable = False
                arms.world.observed(arms.number)
                arms.world.say(f"the newest of {run_id} is not listed yet")

    arms.strike(arms.some_time(0.3, 1.0), "stale reads of the store", stale)


def _link_down(low_s: float, high_s: float, text: str) -> Fault:
    def arm(arms: FaultContext) -> None:
        seconds = arms.rng.uniform(low_s, high_s)
        arms.for_a_while("link_down_until", arms.some_time(0.02, 1.0), seconds, text)

    return arm


def _partitioned(arms: FaultContext) -> None:
    """The guard is cut off from everything."""
    seconds = arms.rng.uniform(300, 14400)
    at = arms.some_time(0.02, 1.05)
    arms.for_a_while("link_down_until", at, seconds, "the pod is cut off")
    arms.for_a_while("pod_api_down_until", at, seconds, "the pod reaches no API")
    if arms.rng.random() < 0.3:
        arms.set_knob("pod_key_useless", True, "the pod's own key ends nothing", at)


def _nan_wins(arms: FaultContext) -> None:
    arms.set_knob("nan_scores", True, "evaluations fail", arms.some_time(0.1, 0.8))


def _ill(kind: str) -> Fault:
    def arm(arms: FaultContext) -> None:
        wish = arms.rng.choice(arms.scenario.wishes)
        expected = wish.plan.candidates[0].soft_stop_s
        after = arms.rng.choice((arms.rng.uniform(0, 60), arms.rng.uniform(0, expected)))
        truth = arms.world.truths[wish.run_id]
        truth.illnesses.append(TrainerFault(kind, after, arms.number))

    return arm


def _ill_until(kind: str, *rooms: float) -> Fault:
    """It strikes until the trainer asks for less: see ``Ill.room``."""

    def arm(arms: FaultContext) -> None:
        _ill(kind)(arms)
        for truth in arms.world.truths.values():
            for index, ill in enumerate(truth.illnesses):
                if (ill.fault, ill.kind, ill.room) == (arms.number, kind, 1.0):
                    # Drawn apart: a world of before has the same faults as it had.
                    apart = random.Random(f"{ill.after_s} {kind}")
                    truth.illnesses[index] = replace(ill, room=apart.choice(rooms))

    return arm


def _save_asked(arms: FaultContext) -> None:
    """No fault, but a wish at an odd time: a user asks for a checkpoint, and the run continues."""
    wish = arms.rng.choice(arms.scenario.wishes)

    def ask() -> None:
        world = arms.world
        process = Process(world, world.laptop, "user")

        def save() -> None:
            try:
                request_save(process.world, wish.run_id, "user")
                world.observed(arms.number)
                world.emit(Observer.on_save_request, wish.run_id)
            except (ConflictError, NotFoundError, NotSupported):
                pass  # it trains not, or not yet

        if process.up:
            process.do(save)
        process.kill()

    for _ in range(arms.rng.choice((1, 1, 2, 4))):
        arms.strike(arms.some_time(0.02, 0.9), f"a checkpoint of {wish.run_id} is asked for", ask)


def _ill_again(*kinds: str) -> Fault:
    def arm(arms: FaultContext) -> None:
        kind = arms.rng.choice(kinds)
        for _ in range(arms.rng.choice((1, 1, 2, 5))):
            _ill(kind)(arms)

    return arm


def _guard_killed(arms: FaultContext) -> None:
    """The agent, its watchdog, or the agent in the middle of an act."""
    what = arms.rng.choice(("agent", "watchdog", "both", "mid-act", "mid-act"))
    point = arms.rng.choice(("start", "started", "trainer", "report", "unreported"))

    def strike(rented: RentedMachine) -> None:
        if what == "mid-act":
            rented.pod.trap(point)
        if what in ("agent", "both"):
            rented.pod.kill_agent()
        if what in ("watchdog", "both"):
            rented.pod.kill_watchdog()

    at = arms.some_time(0.0, 1.0) if what != "mid-act" else arms.some_time(0.0, 0.5)
    arms.strike_pod(at, f"{what} is killed", strike, felt=True)


def _held(arms: FaultContext) -> None:
    """SIGSTOP to the watchdog, the agent or both, for good; or to one, and SIGKILL to the other."""
    watchdog, agent = arms.rng.choice(
        (("stop", ""), ("", "stop"), ("stop", "stop"), ("stop", "kill"), ("kill", "stop"))
    )

    def strike(rented: RentedMachine) -> None:
        pod = rented.pod
        if watchdog == "stop":
            pod.stop_watchdog()
        if agent:
            (pod.stop_agent if agent == "stop" else pod.kill_agent)()
        if watchdog == "kill":
            pod.kill_watchdog()

    told = " and ".join(
        f"its {name} {how}ped" if how == "stop" else f"its {name} killed"
        for name, how in (("watchdog", watchdog), ("agent", agent))
        if how
    )
    arms.strike_pod(arms.some_time(0.0, 1.0), f"has {told}", strike, felt=True)


def _slow(arms: FaultContext) -> None:
    arms.set_knob("slow_factor", arms.rng.uniform(1.3, 4.0), "GPUs are slow")


_WITH_FILE = (
    '{"version":1,"run_id":"r-1","phase":"fast","step":3,"tokens":1,"created_at":1,"recipe":"x",'
    '"settings":{},"world_size":1,"val_bpb":1.0,"step_losses":[],"cooled":false,"data_sha256":"",'
    '"tokenizer_sha256":"","files":[{"name":"NAME","kind":"weights",'
    '"size_bytes":1,"sha256":"' + "0" * 64 + '"}]}'
)
_HOSTILE = (
    '{"version": 1}',
    "[" * 5000,
    '{"version": 1, "files": [{"name": "../../.ssh/authorized_keys"}]}',
    "NaN",
    '{"version": 1, "run_id": "r", "phase": "fast", "step": -1, "files": []}',
    _WITH_FILE.replace("NAME", "../weights.safetensors"),
    _WITH_FILE.replace("NAME", "weights.pkl"),
)


def _hostile_manifest(arms: FaultContext) -> None:
    def offer() -> None:
        text = arms.rng.choice(_HOSTILE)
        try:
            mf.from_json(text, "a pod")
        except CheckpointError:
            arms.world.observed(arms.number)
        else:
            arms.world.fail("I3", "a hostile manifest was accepted")

    arms.strike(arms.some_time(), "a pod offers a hostile manifest", offer)


def _injected(arms: FaultContext) -> None:
    """Words from a pod that are no contract, or would steer a terminal."""

    def inject() -> None:
        arms.world.knobs.garbled_reports = True
        arms.world.knobs.crossed_reports = arms.rng.random() < 0.5
        shown = contract.strip_control("\x1b[2J\x9b31m\u202eok\r")
        if any(ord(c) < 32 or 127 <= ord(c) < 160 or c == "\u202e" for c in shown):
            arms.world.fail("I9", "control characters reach the terminal")
        for text in ("{}", "null", '{"version": 2}', "[" * 2000):
            try:
                contract.load_report(text)
            except contract.ContractError:
                continue
            arms.world.fail("I9", "a garbled report was accepted")

    arms.strike(arms.some_time(), "the pod's words are garbled", inject)


FAULTS: dict[str, tuple[str, Fault]] = {
    "43": ("torn file", _damage("43")),
    "44": ("renamed, but its bytes lost", _damage("44")),
    "45": ("bit flip", _damage("45")),
    "46": ("a rank's shard is missing", _damage("46")),
    "47": ("pod's disk full", _pod_disk_full),
    "48": ("5xx after the upload succeeded", _store_fails),
    "49": ("abandoned multipart upload", _damage("49")),
    "50": ("stale pointer", _stale_pointer),
    "51": ("SSH drops", _link_down(10, 900, "SSH drops")),
    "52": ("link too slow to evacuate", _link_down(3600, 90000, "the link is too slow")),
    "53": ("NaN metric", _nan_wins),
    "54": ("local disk full", answer("fetch_fails", "54", "this disk is full")),
    "55": ("collective hangs", _ill_again("hang", "deaf")),
    "56": ("out of memory", _ill_until("out_of_memory", 1.0, 0.5, 0.2, 0.06, 0.047, 0.044, 0.0)),
    "57": ("loss is NaN", _ill_until("non_finite", 1.0, 0.6, 0.3, 0.2, 0.0)),
    "58": ("a rank is killed", _ill_again("lost", "crashed")),
    "59": ("guard killed", _guard_killed),
    "60": ("guard partitioned", _partitioned),
    "62": ("slow GPU", _slow),
    "63": ("hostile manifest", _hostile_manifest),
    "64": ("hostile words", _injected),
    "71": ("out of memory in the last evaluation", _ill("last_evaluation")),
    "72": ("a checkpoint is asked for", _save_asked),
    "78": ("watchdog or agent stopped", _held),
}
