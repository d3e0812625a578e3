"""A sweep's machines among themselves: real sockets on the loopback, and trials that are none."""

from __future__ import annotations

import contextlib
import hashlib
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.pod.test_sweep import manifests_in, save
from tests.waiting import until
from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.contract.manifest import MANIFEST_NAME, CheckpointManifest, step_dir_name
from trmcloud.core.contract.trainer_contract import Heartbeat, PhaseJob, load_heartbeat
from trmcloud.io.files import write_atomic
from trmcloud.pod.job.parts import Channel
from trmcloud.pod.sweep.children import MachineLost, TrialStart, on_one_machine, trial_name
from trmcloud.pod.sweep.exchange import send_checkpoints
from trmcloud.pod.sweep.fleet import JOIN_WITHIN_S, SILENT_S, Fleet
from trmcloud.pod.sweep.worker import HEAD_SILENT_S, Worker

KEY = "the machines' own"
RUN = ("r-1", "train")
PER_NODE = 2


class Steady:
    """A clock that moves by itself as little as the test takes, and by ``pass_on``."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def steady(self) -> float:
        return time.monotonic() + self.ahead_s

    def now(self) -> float:
        return time.time() + self.ahead_s

    def sleep(self, seconds: float) -> None:
        time.sleep(min(seconds, 0.005))


class Trials:
    """A machine's trials, which do what the test says."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.running: dict[int, Trial] = {}
        self.starts: list[TrialStart] = []

    def folder(self, trial: int) -> Path:
        return self._folder / "trials" / trial_name(trial)

    def manifests(self, trial: int) -> list[CheckpointManifest]:
        return manifests_in(self.folder(trial) / contract.CHECKPOINTS_DIR)

    def beat(self, trial: int) -> Heartbeat | None:
        path = self.folder(trial) / contract.HEARTBEAT_NAME
        return load_heartbeat(path.read_text()) if path.exists() else None

    def open_slots(self) -> frozenset[int]:
        return frozenset(range(PER_NODE))

    def lost_slots(self) -> int:
        return 0

    def start(self, start: TrialStart) -> Trial:
        self.folder(start.trial).mkdir(parents=True, exist_ok=True)
        self.starts.append(start)
        self.running[start.trial] = trial = Trial(self, start)
        return trial


class Trial:
    is_arriving = False

    def __init__(self, trials: Trials, start: TrialStart) -> None:
        self._trials, self.start = trials, start
        self.code: int | None = None
        self.landed = 0

    def poll(self) -> int | None:
        return self.code

    def land(self) -> None:
        self.landed += 1

    def kill(self) -> None:
        if self.code is None:
            self.code = -9

    def end(self, step: int, metric: float | None = None, code: int = 0) -> None:
        """Save at ``step``, say so and end."""
        folder = self._trials.folder(self.start.trial)
        save(folder, step, metric)
        tell(folder, self.start.attempt, step, "ended", "landed_deadline")
        self.code = code


def tell(
    folder: Path, attempt: int, step: int, state: str = "training", outcome: str | None = None
) -> str:
    beat = Heartbeat(
        run_id="r-1", phase="train", attempt=attempt, pid=1, pid_started="1", at=time.time(),
        state=state, step=step, steps=0, outcome=outcome,
    )  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    text = contract.dump(beat)
    write_atomic(folder / contract.HEARTBEAT_NAME, text, durable=False)
    return text


class Scene:
    """The first machine, and others that come and go."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.clock = Steady()
        self.here = Trials(folder / "first")
        self.said: list[str] = []
        self.port = 0
        self.fleet = self.begin()
        self._running: list[tuple[Worker, threading.Thread]] = []
        self.results: list[tuple[str, str]] = []

    def begin(self, nodes: int = 3) -> Fleet:
        """The executor's side, at the same port as the one before."""
        self.fleet = Fleet(
            self.here, RUN, nodes, PER_NODE, KEY, ("127.0.0.1", self.port), self.said.append,
            now=self.clock.now, steady=self.clock.steady,
        )  # fmt: skip
        self.port = self.fleet.port
        return self.fleet

    def work(self, rank: int, name: str = "") -> tuple[Worker, Trials]:
        """A real worker on machine ``rank``, in a thread."""
        folder = self._folder / (name or f"machine{rank}")
        trials = Trials(folder)
        folder.mkdir(exist_ok=True)
        job = PhaseJob(
            run_id="r-1", phase="train", settings={"family": "gpt"}, data_dir="",
            out_dir=str(folder), processes=PER_NODE,
        )  # fmt: skip
        worker = Worker(job, trials, rank, KEY, ("127.0.0.1", self.port), self.clock)
        thread = threading.Thread(target=lambda: self.results.append(worker.run()), daemon=True)
        thread.start()
        self._running.append((worker, thread))
        slots = {rank * PER_NODE, rank * PER_NODE + 1}
        until(lambda: slots <= self.fleet.open_slots(), what="it is here")
        return worker, trials

    def passes(self, seconds: float) -> bool:
        """Let time pass, which no one has lived through."""
        self.clock.ahead_s += seconds
        return True

    def lose_executor(self) -> None:
        """As with its process: the listening socket is gone, and each connection."""
        with contextlib.suppress(OSError):
            self.fleet._server.shutdown(socket.SHUT_RDWR)
        self.fleet._server.close()
        for node in self.fleet._nodes.values():
            if node.channel is not None:
                node.channel._connection.shutdown(socket.SHUT_RDWR)

    def end(self) -> None:
        self.fleet.close()
        self.clock.ahead_s += HEAD_SILENT_S + 1
        for _, thread in self._running:
            thread.join(30)
            assert not thread.is_alive()


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path)
    yield made
    made.end()


def start_of(trial: int, slot: int, attempt: int = 1, *, is_fresh: bool = True) -> TrialStart:
    return TrialStart(trial, {"lr": 0.01}, slot, attempt, time.time() + 3600, is_fresh, 3600.0)


def weights(folder: Path, step: int) -> bytes:
    path = folder / contract.CHECKPOINTS_DIR / step_dir_name(step) / "weights.safetensors"
    return path.read_bytes()


class Peer:
    """A machine's side of the protocol, said by the test line by line."""

    def __init__(self, scene: Scene, rank: int = 1, worker: str = "w", runs: Any = ()) -> None:
        self._connection = socket.create_connection(("127.0.0.1", scene.port), timeout=20)
        self.channel = Channel(self._connection, KEY, asks=False)
        self.channel.send({"rank": rank, "worker": worker, "runs": list(runs)})
        self.kept = self.channel.hear()["keep"]

    def tell(self, runs: Any = (), beats: Any = (), ended: Any = ()) -> dict[str, Any]:
        self.channel.send({"runs": list(runs), "beats": list(beats), "ended": list(ended)})
        return self.channel.hear()

    def go(self) -> None:
        self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()


def test_what_an_interval_made_elsewhere_is_here_before_it_counts_as_ended(scene: Scene) -> None:
    _, there = scene.work(1)
    child = scene.fleet.start(start_of(4, slot=3))
    until(lambda: there.running, what="it is started there")
    [start] = there.starts
    assert (start.slot, start.attempt, dict(start.values)) == (1, 1, {"lr": 0.01})
    assert child.poll() is None
    tell(there.folder(4), 1, 7)
    until(
        lambda: (b := scene.fleet.beat(4)) is not None and b.step == 7, what="its heartbeat comes"
    )
    there.running[4].end(12, 2.5)
    until(lambda: child.poll() == 0, what="it has ended")
    [made] = scene.fleet.manifests(4)
    assert (made.step, made.val_bpb) == (12, 2.5)
    digest = hashlib.sha256(weights(scene.here.folder(4), 12)).hexdigest()
    assert digest == made.files[0].sha256
    beat = scene.fleet.beat(4)
    assert beat is not None
    assert beat.outcome == "landed_deadline"
    child.kill()
    until(lambda: not there.manifests(4), what="what is at home is deleted there")


def test_a_trial_continues_on_another_machine_from_its_own_checkpoint(scene: Scene) -> None:
    (_, first), (_, second) = scene.work(1), scene.work(2)
    child = scene.fleet.start(start_of(1, slot=2))
    until(lambda: first.running, what="it is started")
    first.running[1].end(10, 3.0)
    until(lambda: child.poll() == 0, what="it has ended")
    child.kill()
    again = scene.fleet.start(start_of(1, slot=5, attempt=2, is_fresh=False))
    until(lambda: second.running, what="it continues")
    assert weights(second.folder(1), 10) == weights(scene.here.folder(1), 10)
    # What the trainer prunes there is pruned here.
    second_checkpoints = second.folder(1) / contract.CHECKPOINTS_DIR
    (second_checkpoints / step_dir_name(10) / MANIFEST_NAME).unlink()
    second.running[1].end(20, 2.0)
    until(lambda: again.poll() == 0, what="it has ended again")
    assert [made.step for made in scene.fleet.manifests(1)] == [20]
    again.kill()


def test_landing_is_told_once_and_what_exceeds_its_dollars_is_killed_there(scene: Scene) -> None:
    _, there = scene.work(1)
    child, deaf = scene.fleet.start(start_of(1, slot=2)), scene.fleet.start(start_of(2, slot=3))
    until(lambda: len(there.running) == 2, what="both run")
    child.land()
    until(lambda: there.running[1].landed, what="it is told")
    there.running[1].end(5)
    until(lambda: child.poll() == 0, what="it has landed")
    assert there.running[1].landed == 1
    save(there.folder(2), 9, 1.5)
    deaf.kill()
    assert there.running[2].code == -9
    assert deaf.poll() == -9
    assert [made.step for made in scene.fleet.manifests(2)] == [9], "what it saved came along"
    child.kill()


def test_a_machine_that_is_silent_is_lost_until_it_is_heard_again(scene: Scene) -> None:
    peer = Peer(scene)
    child = scene.fleet.start(start_of(1, slot=2))
    assert peer.tell()["start"][0]["trial"] == 1
    peer.tell(runs=[(1, 1)])
    assert scene.fleet.open_slots() == {0, 1, 2, 3}
    peer.go()
    until(lambda: scene.fleet.open_slots() == {0, 1}, what="nothing is started there")
    assert child.poll() is None, "it may come back"
    assert scene.fleet.lost_slots() == 0
    scene.clock.ahead_s += SILENT_S
    with pytest.raises(MachineLost, match="machine 1 has not answered for 30 s"):
        child.poll()
    assert scene.fleet.lost_slots() == PER_NODE, "the other one may still come"
    child.kill()
    # Meanwhile it runs again here. What the machine tells of it, late, changes nothing.
    save(scene.here.folder(1), 30, 1.0)
    tell(scene.here.folder(1), 2, 30)
    late = Peer(scene, runs=[(1, 1)])
    assert late.kept == []
    assert scene.fleet.lost_slots() == 0
    beat = tell(scene.here.folder(99), 1, 12)
    said = late.tell(runs=[(1, 1)], beats=[(1, 1, 0.0, beat)], ended=[(1, 1, 0, "")])
    assert (said["done"], said["take"]) == ([[1, 1]], [])
    assert [made.step for made in scene.fleet.manifests(1)] == [30]
    own = scene.fleet.beat(1)
    assert own is not None
    assert (own.attempt, own.step) == (2, 30)
    late.go()


def test_a_machine_that_never_came_is_waited_for_and_then_lost(scene: Scene) -> None:
    scene.clock.ahead_s += SILENT_S
    assert scene.fleet.lost_slots() == 0
    scene.clock.ahead_s += JOIN_WITHIN_S
    assert scene.fleet.lost_slots() == 2 * PER_NODE
    scene.work(2)
    assert scene.fleet.lost_slots() == PER_NODE


def test_an_answer_that_comes_twice_counts_once(scene: Scene, tmp_path: Path) -> None:
    made = tmp_path / "made"
    save(made, 8, 2.0)
    peer = Peer(scene)
    child = scene.fleet.start(start_of(1, slot=2))
    peer.tell()
    ended = {"runs": [(1, 1)], "ended": [(1, 1, 0, "bye")]}
    assert peer.tell(**ended)["take"] == [[1, 1]]
    peer.go()  # before anything was sent
    again = Peer(scene, runs=[(1, 1)])
    assert again.kept == [[1, 1]]
    assert again.tell(**ended)["take"] == [[1, 1]]
    send_checkpoints(again.channel, made / contract.CHECKPOINTS_DIR)
    until(lambda: child.poll() == 0, what="it is here")
    said = again.tell(runs=[(1, 1)], ended=[(1, 1, 1, "another end")])
    assert (said["take"], said["done"]) == ([], [])
    assert child.poll() == 0
    child.kill()
    assert again.tell(**ended)["done"] == [[1, 1]], "the first machine has accounted for it"
    assert (scene.here.folder(1) / contract.TRAIN_LOG_NAME).read_text() == "bye\n"
    again.go()


def test_an_order_that_was_lost_with_its_connection_is_given_again(scene: Scene) -> None:
    peer = Peer(scene)
    child = scene.fleet.start(start_of(1, slot=2))
    assert len(peer.tell()["start"]) == 1
    peer.go()
    again = Peer(scene, runs=[])
    assert len(again.tell()["start"]) == 1
    assert child.poll() is None
    again.go()
    # Another process in its place has nothing of it.
    anew = Peer(scene, worker="another")
    with pytest.raises(MachineLost, match="started again"):
        child.poll()
    assert anew.tell()["start"] == []
    anew.go()


def test_an_executor_that_was_killed_is_followed_by_one_with_free_slots(scene: Scene) -> None:
    _, there = scene.work(1)
    scene.fleet.start(start_of(1, slot=2))
    until(lambda: there.running, what="it runs")
    ran = there.running[1]
    scene.lose_executor()
    scene.begin()
    until(lambda: {2, 3} <= scene.fleet.open_slots(), what="it is back")
    until(lambda: ran.code == -9, what="what ran for the one before is ended")
    child = scene.fleet.start(start_of(1, slot=3, attempt=2))
    until(lambda: len(there.starts) == 2, what="it is started again")
    there.running[1].end(4, 2.0)
    until(lambda: child.poll() == 0, what="it has ended")


def test_checkpoints_that_are_not_what_they_say_are_not_taken(scene: Scene, tmp_path: Path) -> None:
    made = tmp_path / "made"
    save(made, 8, 2.0)
    path = made / contract.CHECKPOINTS_DIR / step_dir_name(8) / "weights.safetensors"
    path.write_bytes(b"x" * path.stat().st_size)
    peer = Peer(scene)
    child = scene.fleet.start(start_of(1, slot=2))
    peer.tell()
    for _ in range(3):
        assert child.poll() is None
        assert peer.tell(runs=[(1, 1)], ended=[(1, 1, 0, "")])["take"] == [[1, 1]]
        send_checkpoints(peer.channel, made / contract.CHECKPOINTS_DIR)
    assert peer.tell(runs=[(1, 1)])["done"] == [[1, 1]]
    with pytest.raises(MachineLost, match="do not come whole"):
        child.poll()
    assert scene.fleet.manifests(1) == []
    assert not list(scene.here.folder(1).glob(".coming*"))
    peer.go()


def test_a_machine_that_can_run_nothing_is_given_no_more_until_it_can(scene: Scene) -> None:
    peer = Peer(scene)
    for trial in (1, 2, 3):
        child = scene.fleet.start(start_of(trial, slot=2))
        assert len(peer.tell()["start"]) == 1
        peer.tell(runs=[(trial, 1)], ended=[(trial, 1, None, "No space left on device")])
        with pytest.raises(MachineLost, match="machine 1: it could not be started: No space"):
            child.poll()
        child.kill()
    assert scene.fleet.open_slots() == {0, 1}
    assert scene.fleet.lost_slots() == PER_NODE
    peer.go()


@pytest.mark.parametrize(
    ("hello", "key"),
    [
        ({"rank": 1, "worker": "w", "runs": []}, "another"),
        ({"rank": 3, "worker": "w", "runs": []}, KEY),
        ({"rank": True, "worker": "w", "runs": []}, KEY),
        ({"rank": 1, "worker": "", "runs": []}, KEY),
        ({"rank": 1, "worker": "w", "runs": [[1]]}, KEY),
        ({"rank": 1, "worker": "w", "runs": [[1, "1"]]}, KEY),
        ({"rank": 1, "worker": "w", "runs": [[1, 1]] * 1000}, KEY),
        ({"rank": 1}, KEY),
    ],
)
def test_what_is_no_machine_of_the_sweep_is_not_answered(
    scene: Scene, hello: dict[str, Any], key: str
) -> None:
    with socket.create_connection(("127.0.0.1", scene.port), timeout=20) as connection:
        channel = Channel(connection, key, asks=False)
        channel.send(hello)
        with pytest.raises(OSError, match=r"gone|reset"):
            channel.hear()
    assert scene.fleet.open_slots() == {0, 1}
    _, there = scene.work(1)
    scene.fleet.start(start_of(1, slot=2))
    until(lambda: there.running, what="the fleet still works")


def test_a_message_beyond_its_bound_ends_the_connection(scene: Scene) -> None:
    peer = Peer(scene)
    with contextlib.suppress(OSError):
        peer.tell(beats=["x" * (5 << 20)])
    with pytest.raises(OSError, match=r"gone|reset|Broken pipe"):
        peer.tell()
    assert Peer(scene).kept == []


def test_a_worker_ends_with_the_sweep_and_when_the_first_machine_is_gone(
    scene: Scene, tmp_path: Path
) -> None:
    scene.work(1)
    scene.fleet.close()
    until(lambda: scene.results, what="it has ended")
    assert scene.results == [("finished", "the sweep is over")]
    scene.begin()
    _, there = scene.work(2)
    scene.fleet.start(start_of(1, slot=4))
    until(lambda: there.running, what="it runs")
    scene.lose_executor()
    until(lambda: scene.passes(1.0) and len(scene.results) == 2, what="it has ended, too")
    outcome, message = scene.results[1]
    assert outcome == "bad_config", "an outcome that is not tried again"
    assert "the first machine has not answered" in message
    assert there.running[1].code == -9


def test_a_worker_that_is_told_to_stop_lands_alone_only_without_the_first_machine(
    scene: Scene,
) -> None:
    worker, there = scene.work(1)
    scene.fleet.start(start_of(1, slot=2))
    until(lambda: there.running, what="it runs")
    worker.ask_to_stop()
    tell(there.folder(1), 1, 3)
    until(lambda: (b := scene.fleet.beat(1)) is not None and b.step == 3, what="it goes on")
    assert there.running[1].landed == 0, "when it lands is for the executor to say"
    scene.lose_executor()
    until(lambda: scene.passes(0.1) and there.running[1].landed == 1, what="it lands")
    there.running[1].end(4)
    until(lambda: scene.results, what="it has ended")
    assert scene.results[0][0] == "landed_signal"


def test_a_trial_does_not_wait_for_other_machines() -> None:
    given = {"NNODES": "2", "PET_NNODES": "2", "MASTER_ADDR": "10.0.0.1", "PATH": "/bin"}
    assert on_one_machine(given) == {"PATH": "/bin"}
