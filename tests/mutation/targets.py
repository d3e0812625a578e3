"""What is judged: the modules that keep the budget, and those that read what comes from outside.

A reader of foreign words is one to which a pod, a bucket, a provider, ``sky``, EC2, a price list
or a host of data sets hands text, headers or records of its own making. Of a module that mostly
does other things only the named functions are judged: those that take an answer apart. What reads
files that this machine wrote itself is none (its own notes, the ledger, the user's recipes), nor is
what is handed records that one of these has checked.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Target:
    """Which tests answer for a module: names in ``tests/unit/core``, or paths below ``tests``.

    ``parts``: the functions and classes of it that are judged, with all that they hold; none: all.
    """

    tests: tuple[str, ...]
    parts: tuple[str, ...] = ()

    def judges(self, tree: Path) -> list[Path]:
        """In the order in which they are asked."""
        named = (f"tests/{n}" if "/" in n else f"tests/unit/core/{n}" for n in self.tests)
        return list(dict.fromkeys(path for name in named for path in sorted(tree.glob(name))))

    def holds(self, within: str) -> bool:
        """Whether what stands ``within`` this function or class is judged."""
        inside = (within == part or within.startswith(f"{part}.") for part in self.parts)
        return not self.parts or any(inside)


#: What decides over money and pods: their score together is published first.
CHIEF = (
    *("core.control.controller", "core.control.renting", "core.control.actions"),
    *("core.control.pod_facts", "core.control.boards", "core.control.continuing"),
    "core.control.waiting",
    *("core.control.bookkeeping", "core.control.budget", "core.control.balance"),
    *("core.contract.supervisor", "core.contract.phase_account"),
)

_OTHER_MACHINES = ("test_older_moves.py", "test_waiting.py", "test_continuing.py")
"""Of a machine after another one, or beside it."""

CONTROL = {
    "core.control.budget": Target(
        (
            *("test_budget*.py", "test_quarantine.py", "test_strays*.py"),
            *("test_controller_govern.py", "test_lease*.py", "test_datasets.py"),
            *("test_balance.py", "test_older_moves.py"),
        )
    ),
    "core.control.bookkeeping": Target(
        (
            *("test_bookkeeping*.py", "test_budget*.py", "test_quarantine.py"),
            *("test_controller_govern.py", "test_strays*.py", "test_older_moves.py"),
        )
    ),
    "core.control.controller": Target(
        (
            *("test_controller*.py", "test_strays.py", "test_run_state.py"),
            *_OTHER_MACHINES,
        )
    ),
    "core.control.renting": Target(("test_controller*.py", "test_lease*.py", *_OTHER_MACHINES)),
    "core.control.actions": Target(("test_actions.py", "test_controller*.py")),
    "core.control.pod_facts": Target(
        ("test_controller*.py", "test_bookkeeping.py", *_OTHER_MACHINES)
    ),
    "core.control.boards": Target(("test_controller_boards.py", "test_older_moves.py")),
    "core.control.continuing": Target(
        (
            "test_continuing.py",
            "test_older_moves.py",
            "test_waiting.py",
            "test_controller_ending.py",
        )
    ),
    "core.control.waiting": Target(
        (
            "test_waiting.py",
            "test_continuing.py",
            "test_older_moves.py",
            "test_controller_renting.py",
        )
    ),
    "core.control.balance": Target(("test_balance.py",)),
    "core.contract.supervisor": Target(("test_supervisor*.py", "test_recovery.py")),
    "core.contract.phase_account": Target(
        ("test_phase_account*.py", "test_supervisor*.py", "test_recovery.py")
    ),
}
READERS = {
    # What pods and buckets say.
    "core.contract.records": Target(("test_records.py", "test_pod_contract.py")),
    "core.contract.manifest": Target(("test_pod_contract.py", "test_manifest*.py")),
    "core.contract.pod_contract": Target(
        ("test_pod_contract.py", "test_health.py", "unit/pod/test_hardware.py")
    ),
    "core.contract.trainer_contract": Target(
        ("test_pod_contract.py", "test_datasets.py", "test_health.py")
    ),
    "core.contract.gate": Target(("test_gate*.py", "test_recovery.py")),
    "core.health": Target(
        ("test_health.py",),
        ("read_rows", "step_of", "_drop_from", "_trained", "_numbers"),
    ),
    "core.contract.bucket": Target(
        ("test_bucket*.py", "test_pod_contract.py"),
        ("load_grants", "_is_inside", "load_uploads"),
    ),
    "core.contract.bucket_layout": Target(
        ("test_bucket*.py", "test_pod_contract.py", "test_datasets.py"),
        ("parse_place", "is_slot", "is_oversized", "is_token_slot", "entry_of", "load_entry",
         "is_cache_file", "unpinned", "offered", "token_slots_for"),
    ),
    "core.text": Target(("test_pod_contract.py",), ("strip_control", "one_line")),
    "adapters.ssh.sync": Target(("unit/ssh/test_sync.py",), ("Mirror", "_decoded")),
    "adapters.s3.client": Target(
        ("unit/s3/test_client.py",),
        (
            *("translate_errors", "code_of", "explain", "_refused"),
            *("is_missing", "is_unsupported", "is_final_error", "_until"),
        ),
    ),
    "adapters.s3.bucket": Target(
        ("unit/s3/test_client.py",),
        ("S3Bucket.claim", "S3Bucket.checkpoints", "S3Bucket._keys", "_read", "_pieces"),
    ),
    "adapters.s3.fetching": Target(("unit/s3/test_client.py",), ("get_bytes",)),
    "operations.checks.smoke_watch": Target(
        ("unit/operations/test_reap.py",), ("last_way", "_word", "_outcome")
    ),
    # What providers say.
    "providers.runpod.models": Target(("unit/runpod/test_records.py",)),
    "providers.runpod.http": Target(
        ("unit/runpod/test_api.py", "unit/runpod/test_log.py"),
        ("Http",),
    ),
    "providers.client": Target(
        ("unit/runpod/test_api.py", "contract/test_vast_compute.py", "contract/test_huggingface.py")
    ),
    "providers.runpod.api": Target(
        ("unit/runpod/test_api.py", "unit/runpod/test_answers.py", "unit/runpod/test_log.py")
    ),
    "providers.runpod.account": Target(("unit/runpod/test_answers.py",), ("RunPodGraphql",)),
    "providers.runpod.offers": Target(
        ("unit/runpod/test_offers.py",),
        ("read_catalogue", "_gpus", "_rows", "_table", "_is_number", "_public_list", "_refused"),
    ),
    "providers.skypilot.clusters": Target(
        ("unit/skypilot/test_clusters.py",),
        ("Clusters", "is_new", "_checked", "Launches", "Biller._report", "_amount"),
    ),
    "providers.skypilot.command": Target(("unit/skypilot/test_command.py",)),
    "providers.skypilot.task": Target(
        ("unit/skypilot/test_ec2_answers.py",), ("ShutdownLimit", "_set", "_behaviour")
    ),
    # What hosts of data sets say.
    "adapters.data_hosts": Target(
        ("unit/test_data_hosts.py",),
        ("_RemoteFile.read_at", "_RemoteFile._refusal", "_moved", "_whole", "_number", "_content",
         "_columns"),
    ),
    # Price lists.
    "core.catalog.offers": Target(
        ("unit/planner/test_offers.py",),
        ("parse_offers", "_splitter", "_header", "_whole", "_size", "_instant", "_rate",
         "_odd_rate"),
    ),
    "providers.skypilot.offers": Target(
        ("unit/planner/test_catalogues.py",)
    ),
    "adapters.prices.downloads": Target(("unit/planner/test_catalogues.py",), ("_body",)),
}  # fmt: skip
TARGETS = {**CONTROL, **READERS}
