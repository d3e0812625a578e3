"""The record that tells a machine's executor what its sweep is. Pure."""

from __future__ import annotations

import json

from trmcloud.core.codec import from_json, to_json
from trmcloud.core.sweep.priors import NO_PRIORS, Priors
from trmcloud.core.sweep.terms import SweepTerms
from trmcloud.core.values import dataclass

SWEEP_NAME = "sweep.json"
"""Beside the code of a sweep's machine."""
TRIALS_DIR = "trials"
"""Below a sweep's phase, with a folder for each trial."""
ENV_TRIAL = "TRMCLOUD_TRIAL"
"""A JSON object of settings that a sweep's trial has in place of its job's."""
JOB_VERSION = 1


@dataclass(frozen=True)
class SweepJob:
    """``sweep.json``."""

    terms: SweepTerms
    priors: Priors = NO_PRIORS
    version: int = JOB_VERSION


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
