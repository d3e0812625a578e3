"""A run's checkpoints at their places: found, judged, fetched and verified, opened, exported,
pruned.
"""
