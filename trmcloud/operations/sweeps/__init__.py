"""Many trainings within one budget: what its trials told, what was known before them, and its
dollars.
"""
