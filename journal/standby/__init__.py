"""Reading from streaming standbys what decides nothing (ADR 36)."""
