"""Webhooks: what the outbox announces, told to receivers over HTTP."""
