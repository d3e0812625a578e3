"""What renting needs of this machine, looked at before anything is reserved."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from trmcloud.core.errors import MissingTool

if TYPE_CHECKING:
    from trmcloud.app.world import World


class Need(NamedTuple):
    """One program or right. ``missing``: it is not there, or does not work; ``detail`` says how."""

    name: str
    detail: str
    missing: bool = False
    fix: str = ""


def check_needs(world: World, provider: str) -> None:
    """
    Raises:
        MissingTool: this machine could not reach what it would rent from ``provider``.
    """
    for need in world.needs(provider):
        if need.missing:
            raise MissingTool(
                f"nothing is rented that this machine could not reach: {need.name}: {need.detail}",
                next_step=need.fix,
            )
