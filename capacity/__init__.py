"""Flavor groups, the reservation ledger, host capacity rows, capacity and quota."""
