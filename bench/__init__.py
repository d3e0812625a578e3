"""Benchmarks: ratios within one run. ``python -m bench [NAME …]``; never part of the tests."""
