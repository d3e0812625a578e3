"""A run's metrics as they lie on this machine: curves, their marks, charts, findings, and the
boards that they are sent to.
"""
