"""Writes of the capacity app: one transaction each, or inside their caller's."""
