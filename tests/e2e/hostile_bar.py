"""The live bar of ``launch`` and ``resume``, in the terminal that this is started in, shown a run
whose every word came from a hostile pod, store or provider.

    python hostile_bar.py HOME

Each place is marked by a word of its own, so that whoever looks can tell that it was shown.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import trmcloud.providers.registry  # noqa: F401  fills the traits
from tests.plans import a_candidate, plan_json
from tests.reasons import quoted
from trmcloud.adapters.local.run_files import LocalRunFiles
from trmcloud.cli.views.run_bar import RunBar
from trmcloud.cli.views.streams import forgive_streams
from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.contract.pod_contract import AgentReport
from trmcloud.core.contract.trainer_contract import Heartbeat
from trmcloud.core.control import events as ev
from trmcloud.core.control.events import ActionKey, FailureKind
from trmcloud.core.control.run_state import ActionState, Generation, RunState, State
from trmcloud.core.errors import HostKeyChanged, LinkError, ProviderError
from trmcloud.core.money import Usd
from trmcloud.core.spec.plan import RecordedPlan
from trmcloud.operations.machines import Machines

STEER = "\x1b]0;PWNED\x07\x1b[2J\x9b31m\x85\u202e\u2066\u200f\u2028\ufeff\x00\x7f\x08\r\x1b[5A"
FORGED = "error: all your money is gone"
PLACES = (
    "not-made", "unfit", "create", "list", "hardware", "region", "line", "line-boot", "line-next",
    "balance", "stranger", "data", "grant", "upload", "unforeseen", "pull",
)  # fmt: skip
AT = 1_790_000_000.0


def words(place: str) -> str:
    return f"<{place}>{STEER}\r\n{FORGED}\n\t"


@dataclass
class Context:
    """What the bar asks of one."""

    home: Path
    now: float = AT
    running: dict[ActionKey, tuple[int, int]] = field(default_factory=dict)
    trouble: LinkError | None = None
    troubles: dict[str, Exception] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.files = LocalRunFiles(self.home)
        self.ledger = SimpleNamespace(
            read=lambda: SimpleNamespace(low_balances={}), records=lambda run_id: RECORDS
        )
        self.workers = SimpleNamespace(
            running=lambda: frozenset(self.running), progress=self.running.get
        )
        link: Any = Link(self)
        self.machines = Machines({}, {"runpod": link})

    def wall(self) -> float:
        return self.now


class Account:
    """Its balance cannot be read."""

    def balance(self) -> None:
        raise ProviderError(words("balance"))


class Link:
    """Every method of ``PodLink``; the bar asks for one."""

    def __init__(self, world: Context) -> None:
        self._world = world

    def trouble(self, pod_name: str) -> LinkError | None:
        return self._world.trouble

    def __getattr__(self, name: str) -> Any:
        raise NotImplementedError(name)

    report = send_orders = stage = pull = manifest = None


POD = Generation(
    1, "trmc-0badcafe-r1-g1-1790003600", "runpod", "c1", Usd("1.79"), AT + 3000, AT + 3600, AT,
)  # fmt: skip
WISH = plan_json(a_candidate(hardware=words("hardware"), region=words("region")), bucket="s3://b/p")
PLAN = RecordedPlan(WISH)
RUN = RunState("r-1", State.RESERVED, PLAN, Usd(9), generations=(POD,))
BEAT = Heartbeat(
    "r-1", "fast", 1, 7, "b", AT + 100, "training", 3, 9, step_losses=(5.0, 4.0), message="x",
    saved_step=3, best_step=2, best_bpb=2.0,
)  # fmt: skip
REPORT = AgentReport("r-1", POD.pod_name, 1, 5, AT, AT + 90, (), AT + 3000, AT + 3600)


NOT_MADE, REFUSED = (
    ev.PodIntended(n, POD.pod_name, "runpod", "c1", POD.rate, AT + 3000, AT + 3600) for n in (1, 2)
)
RECORDS = [
    ev.Record(number, "r-1", 1, AT, event)
    for number, event in enumerate(
        (
            ev.RunPlanned(WISH, Usd(9), "default"),
            ev.Reserved(Usd(9)),
            NOT_MADE,
            ev.PodNotMade(1, quoted(words("not-made"))),
            REFUSED,
            ev.PodUp(2, "id-2", POD.rate),
            ev.ResultKnown("unfit", quoted(words("unfit"))),
        ),
        start=1,
    )
]


class Show:
    """Shows the bar one state after another, a quarter of a minute apart, each of them drawn."""

    def __init__(self, home: Path) -> None:
        self.world = Context(home)
        self.bar = RunBar(self.world)  # type: ignore[arg-type]

    def __call__(self, run: RunState, times: int = 1) -> None:
        for _ in range(times):
            self.bar.watch(run)
            if self.bar._live is not None:
                self.bar._live.refresh()
            self.world.now += 15.0

    def says(self, **changes: Any) -> None:
        folder = self.world.home / "pods" / POD.pod_name
        folder.mkdir(parents=True, exist_ok=True)
        text = contract.dump(replace(REPORT, **changes))
        (folder / contract.REPORT_NAME).write_text(text)

    def beats(self, beat: Heartbeat) -> None:
        folder = self.world.home / "runs" / "r-1" / beat.phase
        folder.mkdir(parents=True, exist_ok=True)
        (folder / contract.HEARTBEAT_NAME).write_text(contract.dump(beat))


def main() -> None:
    forgive_streams()
    show = Show(Path(sys.argv[1]))
    world = show.world
    with show.bar:
        run = replace(RUN, generations=tuple(replace(POD, number=n) for n in (1, 2, 3)))
        show(run)
        made = ActionState("create", AT, AT + 1, FailureKind.AMBIGUOUS, words("create"))
        run = replace(run, state=State.RENTING, actions={ActionKey("r-1", 3, "create", 1): made})
        world.machines.lists.fail("runpod", ProviderError(words("list")), AT)
        show(run, 2)
        run = replace(run, state=State.BOOTING)
        world.trouble = LinkError(words("line-boot"), next_step=words("line-next"))
        show(run, 5)
        world.trouble = HostKeyChanged(words("stranger"))
        show(run, 2)
        world.trouble = None
        run = replace(run, state=State.RUNNING)
        account: Any = Account()
        world.machines.balances.read("runpod", account, AT)
        show(run)
        world.trouble = LinkError(words("line"))
        show(run, 3)
        world.trouble = None
        show.says(notes={contract.DATA_NOTE: words("data")})
        show(run, 2)
        asked = ActionState("grant", AT, AT + 1, FailureKind.ERROR, words("grant"))
        show(replace(run, actions={**run.actions, ActionKey("r-1", 3, "grant", 1): asked}))
        show.says(trouble=words("upload"))
        show.beats(BEAT)
        world.running[ActionKey("r-1", 3, "pull", 1, words("pull"))] = (1_000_000, 3_000_000)
        show(run, 3)
        world.troubles["r-1"] = ValueError(words("unforeseen"))
        show(run)
        show(replace(run, state=State.CLOSED))


if __name__ == "__main__":
    main()
