"""A Placement elsewhere that requests are handed on to (spec placement, 8)."""
