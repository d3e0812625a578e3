"""Notifications of what the ledger tells: which are due, where they go, whether they arrived."""
