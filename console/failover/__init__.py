"""Pages of failover: coverage, drills, slots, runs, evacuations."""
