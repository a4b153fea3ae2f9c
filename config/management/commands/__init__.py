"""Operator commands of the commitments app."""
