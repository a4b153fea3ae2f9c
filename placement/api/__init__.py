"""The HTTP surface of Placement."""
