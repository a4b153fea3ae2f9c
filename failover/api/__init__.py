"""Our own API of failover: drills and drain checks."""
