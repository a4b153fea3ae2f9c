"""Reads of the Placement API: one query each."""
