"""Operator commands of failover."""
