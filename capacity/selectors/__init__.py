"""Reads of the capacity app."""
