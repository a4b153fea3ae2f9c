"""Failover capacity. Holds its floor until the failover loop is built."""
