"""Writes of the Placement API: one transaction each."""
