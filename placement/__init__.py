"""Placement-compatible API. Holds its floor until the API is built."""
