"""From a command's own options to the one LaunchRequest that use cases take."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import typer

from trmcloud.app.launch_request import LaunchRequest

_KNOWN = {field.name for field in fields(LaunchRequest)} - {"typed"}


def request_of(command: typer.Context, **changes: Any) -> LaunchRequest:
    """What was typed, by the names of the command's parameters; those that are no part of a
    request are left out. ``changes``: in place of what was typed."""
    given = {name: value for name, value in command.params.items() if name in _KNOWN}
    typed = tuple(
        name
        for name in given
        if getattr(command.get_parameter_source(name), "name", "") == "COMMANDLINE"
    )
    given = {name: value for name, value in given.items() if value is not None}
    return LaunchRequest(**{**given, **changes}, typed=typed)
