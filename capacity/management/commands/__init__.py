"""Operator commands of `capacity`."""
