"""Writes of the commitments app: one transaction each."""
