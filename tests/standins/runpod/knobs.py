"""Everything about the stand-in that a test may turn while it runs.

Delays and faults are fields of one dataclass, so that a misspelt name is refused and the command
form takes the same names as the object. A field that counts is used up: ``delete_noop=1`` spoils
the next delete and no other.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, get_args, get_origin, get_type_hints


@dataclass(frozen=True)
class Behaviour:
    """What RunPod does to everybody, in seconds; pairs are (shortest, longest)."""

    boot_s: tuple[float, float] = (20.0, 400.0)
    """From the create call until the container runs."""
    delete_s: tuple[float, float] = (1.0, 15.0)
    """From an accepted delete until nothing is billed."""
    lists_new_after_s: tuple[float, float] = (0.0, 10.0)
    quantum_s: float = 1.0
    tick_s: float = 300.0
    """How often the balance is charged."""
    restarts: bool = True
    """A command that ends is started again; the pod stays RUNNING and is billed."""
    ignores_timer: bool = True
    """terminateAfter and stopAfter are taken and forgotten."""
    lists_gone: bool = False
    prepaid: bool = True
    self_ends: str = "api"


BEHAVIOUR = Behaviour()


@dataclass
class Knobs:
    """Seconds and counts. The defaults are a provider that is well and in a hurry."""

    # -- delays ----------------------------------------------------------------------------
    provisioning_s: float = 0.05
    starting_s: float = 0.05
    ssh_after_s: float = 0.0
    """From RUNNING until ``runtime`` and ``ssh.direct`` are known."""
    says_running: bool = False
    """RUNNING is said from the create on, though nothing runs yet."""
    delete_s: float = 0.0
    """From an accepted delete until the pod is off the list and the bill; its processes die at
    once."""
    restart_after_s: float = 0.5
    list_omits_new_s: float = 0.0
    billing_lag_s: float = 0.0

    # -- creates ---------------------------------------------------------------------------
    no_capacity: list[str] = field(default_factory=list)
    """GPU ids, or "id@data centre", or "*"."""
    forbidden_gpus: list[str] = field(default_factory=list)
    """GPU ids whose pool this account may not use: 403."""
    create_refused: int = 0
    """The status of every create while it is not 0, such as 413: nothing is made."""
    lands_in: str = ""
    """The data centre that pods are put in, whatever was asked for."""
    boot_log: list[str] = field(default_factory=list)
    """What the host says instead of starting the containers of pods made from now on, which stay
    RUNNING without an address and without a process, as users report."""
    boot_log_gpus: list[str] = field(default_factory=list)
    """GPU ids whose pods that befalls; none: all."""
    logs_status: int = 0
    """The status of every answer for a log, while it is not 0."""

    # -- lists and deletes ----------------------------------------------------------------
    list_page: int = 0
    """The most pods in a page of v2's list, before cluster members are taken out; 0: 1000."""
    volume_page: int = 0
    """The most network volumes in a page; 0: 1000."""
    cluster_members: list[str] = field(default_factory=list)
    """Names of pods that v2's list shows with ``includeClusterPods`` alone."""
    list_unpaged: bool = False
    """v2's list is not cut and says nothing of pages, as before this autumn."""
    list_endless: bool = False
    """Empty pages with ever new cursors."""
    list_circle: bool = False
    """Empty pages with always the same cursor."""
    list_lacks_pods: int = 0
    """200s without ``pods``."""
    list_empty: int = 0
    list_omits: list[str] = field(default_factory=list)
    """Names of pods that v2's list does not show; GraphQL's does."""
    delete_noop: int = 0
    """Answers 204 and does nothing."""

    # -- the API itself --------------------------------------------------------------------
    down: bool = False
    """Every answer is 503."""
    down_until: float = 0.0
    """The same until then, by the stand-in's clock; ``control.down(seconds)`` sets it."""
    errors_502: int = 0
    throttle: int = 0
    throttled_until: float = 0.0
    """Every answer of v2 is 429 until then, by the stand-in's clock."""
    retry_after_s: int = 1
    v2_gone: bool = False
    """v2 has been retired: 410."""
    malformed: int = 0
    """200s whose body is cut short."""
    html: int = 0
    """200s whose body is a web page."""
    billing_mode: str = "PREPAID"
    """What the account's balance says of how it pays: PREPAID, POSTPAID, or anything else."""
    money_denied: bool = False
    """The key lacks billing:read and account:read: 403."""
    money_absent: bool = False
    """There is no address for the balance and the limits: 404."""
    graphql_errors: int = 0
    graphql_gone: bool = False
    """GraphQL has been retired: 410."""
    graphql_throttled: bool = False
    """GraphQL's rate has been cut to nothing: 429."""
    key_revoked: bool = False
    read_only: bool = False
    """The account key may read and not write: 403."""
    clock_skew_s: float = 0.0
    """Of the Date header."""

    # -- inside pods ------------------------------------------------------------------------
    fewer_gpus: int = 0
    """That many less than rented."""
    shown_gpu: str = ""
    """The name of the GPU that is there in the place of the rented one; empty: that one."""
    driver: str = "570.124.06"
    cuda: str = "12.8"
    restart_loop: bool = False
    """Each command is killed ``restart_loop_s`` after its start."""
    restart_loop_s: float = 1.0
    image_entrypoint: list[str] = field(default_factory=list)
    """The image's own ENTRYPOINT, which a create may replace."""
    absent_commands: list[str] = field(default_factory=list)
    """Not installed in pods made from now on, such as rsync."""
    workspace_mib: int = 0
    """Size of /workspace in pods made from now on; 0: that of the folder's disk."""
    runpodctl: str = "both"
    """That of either syntax, or absent."""

    # -- what the pod's own key may do --------------------------------------------------------
    self_graphql: bool = True
    self_action: bool = True
    self_delete: bool = True

    def set(self, values: Mapping[str, Any]) -> None:
        """Turn knobs; a name or type that is none raises ValueError and turns nothing."""
        kinds = get_type_hints(type(self))
        turned = {}
        for name, value in values.items():
            if name not in kinds:
                raise ValueError(f"no knob is called {name!r}")
            turned[name] = _as(kinds[name], name, value)
        for name, value in turned.items():
            setattr(self, name, value)

    def reset(self, *names: str) -> None:
        """Back to the defaults; without names, all of them."""
        fresh = Knobs()
        for name in names or [knob.name for knob in fields(self)]:
            setattr(self, name, getattr(fresh, name))

    def use(self, name: str) -> bool:
        """Whether a counting fault strikes now; one use of it is gone."""
        left = int(getattr(self, name))
        if left <= 0:
            return False
        setattr(self, name, left - 1)
        return True

    def lifelike(self, seed: int = 0) -> None:
        """Delays drawn from what RunPod was seen to take."""
        drawn = random.Random(seed)
        boot_s = drawn.uniform(*BEHAVIOUR.boot_s)
        self.provisioning_s, self.starting_s = boot_s * 0.8, boot_s * 0.2
        self.delete_s = drawn.uniform(*BEHAVIOUR.delete_s)
        self.list_omits_new_s = drawn.uniform(*BEHAVIOUR.lists_new_after_s)
        self.restart_after_s = 1.0


def _as(kind: Any, name: str, value: Any) -> Any:
    if get_origin(kind) is list:
        inner = get_args(kind)[0]
        if isinstance(value, (list, tuple)) and all(isinstance(item, inner) for item in value):
            return list(value)
    elif kind is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    elif kind is int and isinstance(value, int):
        return int(value)
    elif isinstance(value, kind):
        return value
    raise ValueError(f"{name} takes {getattr(kind, '__name__', kind)}, not {value!r}")
