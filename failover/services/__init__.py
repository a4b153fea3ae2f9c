"""What writes failover reservations."""
