"""From a request to a frozen plan: prices, probes and measurements, the checks before a launch, and
which candidates are worth a choice.
"""
