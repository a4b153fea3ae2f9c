"""The guard over hosts that promise more than they have (spec commitments, 11)."""
