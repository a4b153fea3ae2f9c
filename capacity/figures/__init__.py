"""Capacity per flavor group and zone, and quota (spec liquid, 10 and 13)."""
