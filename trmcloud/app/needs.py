"""What renting needs of this machine, looked at before anything is reserved."""

from __future__ import annotations

from trmcloud.app.context import Context
from trmcloud.core.errors import MissingTool


def check_needs(context: Context, provider: str) -> None:
    """
    Raises:
        MissingTool: this machine could not reach what it would rent from ``provider``.
    """
    for need in context.needs(provider):
        if need.missing:
            raise MissingTool(
                f"nothing is rented that this machine could not reach: {need.name}: {need.detail}",
                next_step=need.fix,
            )
