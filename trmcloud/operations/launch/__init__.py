"""From a wish to a run that is driven, the same for every door: its checks in their order, the
reservation, a resume, and what is asked of a run later.
"""
