"""A month's spending, receipts, grants and caps, network volumes: what was reserved, accrued and
billed, as views.
"""
