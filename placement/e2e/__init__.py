"""Checks of a running Placement API over HTTP (spec placement, 8.9)."""
