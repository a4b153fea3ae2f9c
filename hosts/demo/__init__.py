"""A region that lives, for ``./run demo``: nothing of it ever runs elsewhere (docs/running.md)."""
