"""The record that tells a machine's executor what its sweep is. Pure."""

from __future__ import annotations

import json

from trmcloud.core.codec import from_json, to_json
from trmcloud.core.sweep.priors import NO_PRIORS, Priors
from trmcloud.core.sweep.terms import SweepTerms
from trmcloud.core.values import Value

SWEEP_NAME = "sweep.json"
"""Beside the code of a sweep's machine."""
TRIALS_DIR = "trials"
"""Below a sweep's phase, with a folder for each trial."""
ENV_TRIAL = "TRMCLOUD_TRIAL"
"""A JSON object of settings that a sweep's trial has in place of its job's."""
JOB_VERSION = 1
RAY = "ray"
"""Where trials run, in place of the executor's machine: on a user's own cluster."""
ENV_RAY_ADDRESS = "RAY_ADDRESS"
"""Ray's own variable: the cluster that it speaks to."""


class SweepJob(Value):
    """``sweep.json``."""

    terms: SweepTerms
    priors: Priors = NO_PRIORS
    on: str = ""
    """``ray``, or ``ray:ADDRESS``; empty: the executor's machine."""
    version: int = JOB_VERSION


def place_of(on: str, address: str) -> str:
    """Return where trials run: ``on`` as it was typed, with the ``address`` of Ray's variable."""
    return f"{on}:{address}" if on == RAY and address else on


def ray_address(on: str) -> str | None:
    """Return the address of the cluster that trials run on: empty for a Ray of the executor's
    machine; None where they do not run on Ray."""
    name, _, address = on.partition(":")
    return address if name == RAY else None


def dump_job(job: SweepJob) -> str:
    return json.dumps(to_json(job), allow_nan=False)


def load_job(text: str) -> SweepJob:
    """
    Raises:
        ValueError: it is no such record, or that of another version.
    """
    try:
        job = from_json(SweepJob, json.loads(text))
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"{SWEEP_NAME} cannot be read: {error!r}") from error
    if job.version != JOB_VERSION:
        raise ValueError(f"{SWEEP_NAME} has version {job.version}, not {JOB_VERSION}")
    return job
