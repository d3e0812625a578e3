"""Imports of the process from which the workers of a preparation are forked. A worker's parent is
that process, not the test's; it ends when the test's process ends, and the workers with it."""

from __future__ import annotations

import multiprocessing

import numpy  # noqa: F401  what a worker imports first
import pyarrow.parquet  # noqa: F401
import tokenizers  # noqa: F401

import model.preparing.work  # noqa: F401

multiprocessing.parent_process = lambda: None
