"""Checks of a running server over HTTP, as its clients see it."""
