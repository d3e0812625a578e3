"""Ports to this machine: time, workers, recipes, prices, data sets, files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from trmcloud.core.values import Value

if TYPE_CHECKING:
    from trmcloud.core.catalog.goals import Goal
    from trmcloud.core.catalog.hardware import LocalMachine
    from trmcloud.core.catalog.offers import Offer
    from trmcloud.core.clock import Instant
    from trmcloud.core.contract.manifest import CheckpointManifest
    from trmcloud.core.contract.pod_contract import AgentReport
    from trmcloud.core.contract.trainer_contract import Heartbeat
    from trmcloud.core.control.events import ActionKey, DataPinned, RunEvent
    from trmcloud.core.control.run_state import RunState
    from trmcloud.core.errors import TrmcloudError
    from trmcloud.core.spec.recipe import Recipe
    from trmcloud.core.spec.spec import DataSource

# Time, and what takes long.


class Clock(Protocol):
    def now(self) -> Instant: ...

    def sleep(self, seconds: float) -> None: ...


Progress = Callable[[int, int], None]
"""Called with (bytes done, bytes in all) during a copy; raises where the copy is not wanted."""


class WorkDone(Value):
    """A piece of work that has ended: ``error`` is None where it was done."""

    key: ActionKey
    error: TrmcloudError | None


class Workers(Protocol):
    """Workers for long actions, while the controller continues to look and decide."""

    def start(self, key: ActionKey, work: Callable[[Progress], None]) -> None: ...

    def running(self) -> frozenset[ActionKey]: ...

    def finished(self) -> Sequence[WorkDone]:
        """Return the work that has ended since the last call."""

    def progress(self, key: ActionKey) -> tuple[int, int] | None:
        """(bytes done, bytes in all) of work that is going on."""

    def cancel(self) -> None:
        """Nothing that is going on is wanted any more; it ends soon, and is not told of."""


# Ports of what plans and runs read on this machine: recipes, prices, data sets, files.

# What runs have left on this machine.


class RunFiles(Protocol):
    """A run's files, wherever they survive."""

    def phases(self, run_id: str) -> Sequence[str]: ...

    def heartbeat(self, run_id: str, phase: str) -> Heartbeat | None: ...

    def metrics(self, run_id: str, phase: str) -> Sequence[Mapping[str, object]]: ...

    def manifests(self, run_id: str) -> Sequence[CheckpointManifest]: ...

    def damaged(self, run_id: str) -> Sequence[tuple[str, str]]:
        """Checkpoint folders whose manifest cannot be read: (label, why)."""

    def fetch(
        self,
        manifest: CheckpointManifest,
        names: Sequence[str],
        into: str,
        progress: Callable[[int, int], None],
    ) -> None:
        """Copy files of a checkpoint into a folder, resuming what is there, verifying each hash.

        Raises:
            CheckpointError: a file is missing, too large, or not what its hash says.
        """

    def delete(self, manifest: CheckpointManifest) -> None: ...

    def folder_of(self, manifest: CheckpointManifest) -> str:
        """Path of the checkpoint on this machine."""

    def folder(self, run_id: str) -> str:
        """Path of the run's files on this machine."""

    def logs(self, run_id: str, phase: str) -> str:
        """Path of the phase's log on this machine."""

    def is_elsewhere(self, run_id: str) -> bool:
        """Whether a run was launched from another home that shares the ledger: its files, keys and
        local pods are there, so that no look from here takes it over."""


class RunNotes(Protocol):
    """What is kept about runs beside the ledger."""

    def launch(self, run_id: str) -> Mapping[str, Any]:
        """Return the facts beside the plan that a controller needs after a crash.

        Raises:
            DataError: they are missing or damaged.
        """

    def put_launch(self, run_id: str, note: Mapping[str, Any]) -> None: ...

    def drop_launch(self, run_id: str) -> None:
        """Delete the note of a run that was not opened after all."""

    def add_machine(self, run: RunState, report: AgentReport) -> None:
        """Add what an agent reports of its machine to the run's history."""

    def add_creates(self, run: RunState | None, events: Iterable[RunEvent], now: float) -> None:
        """Add a line for each event that says what came of a create; ``run`` is as it was before
        the events."""


# What plans are made from, wherever it is kept: recipes, prices, data sets, this machine.

ENV_TEST_SETTINGS = "TRMCLOUD_TEST_SETTINGS"
"""For tests alone: a TOML file of settings (``depth = 1``) that take the place of every recipe's
own, in each phase and on all hardware, so that a whole run ends in seconds on two cores. Whatever
else happens is real. Each plan made so says it."""


class PlanInputs(Protocol):
    """Each method loads anew; who plans keeps what it was given."""

    def recipe(self, name: str) -> Recipe:
        """A recipe by its name, or by the path of a TOML file.

        Raises:
            NotFoundError: no such recipe. UsageError: the file is none.
        """

    def goal(self, name: str) -> Goal:
        """A goal by its name, or by the path of a TOML file that has one.

        Raises:
            NotFoundError: no such goal. UsageError: the file is none.
        """

    def live_prices(self, now: float, providers: Sequence[str]) -> tuple[Sequence[Offer], str]:
        """(what can be rented at ``now`` (epoch s) by the own lists of ``providers``; why one could
        not be read within seconds, empty where all were, or where there is no key to ask with)."""

    def offers(self, now: float, live: Sequence[Offer]) -> list[Offer]:
        """Every offer known at ``now`` (epoch s), ``live`` ones in place of older ones.

        Raises:
            UsageError: a table is malformed.
        """

    def machine(self) -> LocalMachine: ...

    def data_source(self, name: str) -> DataSource:
        """Return the data source that a resolved name stands for.

        Raises:
            UsageError: an address that ends in no file's name.
        """

    def pinned_source(self, source: DataSource) -> tuple[DataSource, DataPinned | None]:
        """The source at the revision that its host has now, and what to put on record of that;
        the same source where its host publishes no revisions.

        Raises:
            DataError: the host does not say.
        """

    def pods_can_upload(self) -> bool:
        """Whether the bucket's store takes presigned requests; else it is fed from here."""

    def enabled_clouds(self) -> Sequence[str]:
        """Providers that SkyPilot has access to.

        Raises:
            ProviderError: it is not installed, too old, or cannot be asked.
        """
