"""What reads hosts, VMs and failover reservations as values of the domain."""
