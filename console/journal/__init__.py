"""Pages of the audit trail, the outbox, leases and signs of life; users and groups."""
