"""A run as it is read: its facts, its views, how it stands, what is logged of it. Nothing here
changes a run.
"""
