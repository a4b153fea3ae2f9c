"""Reads of the commitments app."""
