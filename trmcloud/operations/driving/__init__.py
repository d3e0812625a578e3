"""The loop that carries a run (observe, decide, append, act), the reaper, and the takeover of runs
that nobody drives. Decisions themselves are made in ``core.control``.
"""
