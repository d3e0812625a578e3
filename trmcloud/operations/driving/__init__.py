"""The loop that carries a run and what ends pods without it: observe, decide, append, act; the
reaper; whoever types the next command. What is decided is in ``core.control``.
"""
