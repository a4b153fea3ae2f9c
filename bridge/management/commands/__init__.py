"""Operator commands of the bridge."""
