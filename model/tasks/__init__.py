"""Scores of a model on tasks: ``python -m model.tasks`` and, in a training, ``evaluate_suite``."""
