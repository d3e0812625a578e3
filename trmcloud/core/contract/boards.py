"""The board that a GPU sits on, by what nvidia-smi says of it: PCIe, SXM or NVL.

"H100" is three products, of which the slowest has three quarters of the fastest one's peak, and
nothing but bridges between two of them. Providers' catalogues do not always tell them apart; the
machine does. Judged by the name where that says it, else by the power limit and the NVLink links.

Seen in published output of nvidia-smi: "NVIDIA H100 80GB HBM3" 700 W with 18 links, "NVIDIA H100
PCIe" 350 W (12 links between two bridged cards, else none), "NVIDIA H100 NVL", "NVIDIA H200",
"NVIDIA H200 NVL", "NVIDIA A100-SXM4-80GB" 400 or 500 W, "NVIDIA A100 80GB PCIe" 300 W,
"NVIDIA A100-PCIE-40GB" 250 W, "NVIDIA GH200 480GB", "NVIDIA B200", "NVIDIA RTX PRO 6000 Blackwell
Server Edition", "… Workstation Edition", "… Max-Q Workstation Edition".
"""

from __future__ import annotations

import json
import re
from typing import NamedTuple

from trmcloud.core.text import strip_control

PCIE, NVL, SXM = "PCIe", "NVL", "SXM"
_ORDER = ("", PCIE, NVL, SXM)

BOARD_NOTE = "board"
"""The topic of a report's note about its machine's board: JSON."""
_MOST_CHARS = 1024

#: What a name holds, and the form factor that this means: the first that matches. A superchip's
#: GPU is on NVLink as an SXM board is.
_NAMED = (
    (r"SXM|HGX|\bG[BH]\d{3}\b", SXM),
    (r"PCI-?E", PCIE),
    (r"NVL\b", NVL),
    (r"\b[HB]\d{3}\b.*\bHBM3", SXM),
    (r"\b(H20|H200|B200|B300)\b", SXM),
    (r"GeForce|Quadro|\bRTX|\b(A2|A10G?|A16|A30|A40|L4|L20|L40S?|T4)\b", PCIE),
)

#: Of families that are made in more than one form: the least power limit (W) of an SXM board, and
#: the number of its NVLink links.
_SXM = {"H100": (500, 18), "H200": (650, 18), "H800": (500, 8), "A100": (350, 12)}


class Board(NamedTuple):
    """``form`` is PCIe, NVL, SXM, or '' where that is not known; ``by`` is what says so."""

    family: str
    form: str
    by: str = ""

    @property
    def text(self) -> str:
        return f"{self.family} {self.form}" if self.form else self.family


class BoardSeen(NamedTuple):
    """The board that a machine's first GPU states. ``watts`` is the highest power limit that can
    be set, ``links`` the number of active NVLink links; None where it did not say. ``torch`` is the
    torch that the machine's driver was found to need, '' the planned one."""

    name: str
    watts: float | None = None
    links: int | None = None
    driver: str = ""
    torch: str = ""

    @property
    def board(self) -> Board:
        return classify(self.name, self.watts, self.links)

    def to_text(self) -> str:
        return json.dumps(list(self), separators=(",", ":"))


def board_from(text: str) -> BoardSeen | None:
    """The board that a note tells of; None where it is none, as a pod may write anything."""
    if not text or len(text) > _MOST_CHARS:
        return None
    try:
        name, watts, links, driver, torch = json.loads(text)
    except (ValueError, TypeError, RecursionError):
        return None
    if not all(type(each) is str for each in (name, driver, torch)):
        return None
    if watts is not None and not (type(watts) in (int, float) and 0 <= watts < 1e5):
        return None
    if links is not None and not (type(links) is int and 0 <= links < 1000):
        return None
    name, driver, torch = (strip_control(each)[:80] for each in (name, driver, torch))
    return BoardSeen(name, watts, links, driver, torch)


def classify(name: str, watts: float | None = None, links: int | None = None) -> Board:
    """Return the board of a GPU by nvidia-smi's name, its highest power limit (W) and the number of
    its active NVLink links.

    A name that says SXM does not stand against a power limit of a card and no link at all.
    """
    family = _family(name)
    named = next((form for part, form in _NAMED if re.search(part, name, re.IGNORECASE)), "")
    measured, by = _measured(family, watts, links)
    if named == SXM and measured == PCIE and links == 0:
        return Board(family, PCIE, f"{by}, which its name contradicts")
    if named:
        return Board(family, named, "its name")
    return Board(family, measured, by)


def is_worse(found: str, planned: str) -> bool:
    """Whether a form factor is slower than the planned one; what is not known is not."""
    if found not in _ORDER or planned not in _ORDER:
        return False
    return bool(found and planned) and _ORDER.index(found) < _ORDER.index(planned)


def active_links(text: str) -> int | None:
    """Return the number of active links of the first GPU in ``nvidia-smi nvlink --status``; None
    where that printed no GPU, as of a driver that knows none."""
    gpus = re.split(r"(?m)^\s*GPU \d+:", text)
    if len(gpus) < 2:
        return None
    speeds = re.findall(r"Link \d+:\s*([\d.]+) GB/s", gpus[1])
    return sum(float(speed) > 0 for speed in speeds if re.fullmatch(r"\d{1,6}(\.\d+)?", speed))


def _measured(family: str, watts: float | None, links: int | None) -> tuple[str, str]:
    """Return the form factor by power limit and links, and the words for these."""
    if family not in _SXM:
        return "", ""
    least_watts, all_links = _SXM[family]
    told = [f"{watts:.0f} W"] if watts else []
    by = " and ".join([*told, f"{links} links"] if links is not None else told)
    if watts:
        return (SXM if watts >= least_watts else PCIE), by
    if links is not None and links >= all_links and family != "A100":
        return SXM, by
    return "", by


def _family(name: str) -> str:
    """``H100`` of "NVIDIA H100 80GB HBM3"; the name without its maker where no family is known."""
    match = re.search(r"\b(G?[ABHVL]\d{1,3}[GS]?)\b", name)
    return match[1] if match else re.sub(r"^NVIDIA ", "", name)
