"""Operator commands of `console`."""
