"""The pure scheduling engine: host table, request, filters, weighers, explanations."""
