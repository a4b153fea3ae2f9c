"""Append-only audit entries, the transactional outbox and what every app stands on."""
