"""A plausible region of any size, the same bytes for the same seed (issue 2, item 5)."""
