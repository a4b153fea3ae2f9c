"""The deployment's settings tree, by the name that the apps know it by."""

from __future__ import annotations

from journal.known_settings import headroom

__all__ = ["headroom"]
