"""Pages of commitments, their events, slots, usage and runs."""
