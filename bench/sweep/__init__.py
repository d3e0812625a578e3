"""Sweeps on tables of real trainings, beside other tuners: see docs/soak/sweep.md."""
