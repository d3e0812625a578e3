"""The decisions of a sweep: its space of settings, samplers, successive halving in dollars, and
what its results show. Pure; it also runs on pods.
"""
