"""Operator REST: every object as a list and by name, read only (style, 10)."""
