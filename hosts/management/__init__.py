"""Operator commands of `hosts`."""
