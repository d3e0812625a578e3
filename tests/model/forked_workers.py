"""What the process imports that preparations' workers are forked from. They are its children, so a
worker cannot know the test's process as its parent; this one ends with the test's, and they with
it."""

from __future__ import annotations

import multiprocessing

import numpy  # noqa: F401  what a worker imports first
import pyarrow.parquet  # noqa: F401
import tokenizers  # noqa: F401

import model.preparing.work  # noqa: F401

multiprocessing.parent_process = lambda: None
