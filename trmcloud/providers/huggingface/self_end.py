"""The way in which a job ends itself. Runs in the job: standard library only, Python 3.10.

A job ends when its command ends, and with it its rent. The command is the guard's own process, so
no credential is needed: the process exits.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

SECRETS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
"""Never in the environment of a trainer, though no job of ours is given one."""


def ways(environment: Mapping[str, str], tools: Any) -> list[tuple[str, Callable[[], Any]]]:
    """(name, what tries it): the process ends, with 0, and the job is COMPLETED."""
    return [("exit", partial(os._exit, 0))]
