"""What runs on a host: what it has, what is on it, what it does for Headroom."""

from __future__ import annotations

from typing import Final

#: As ``pyproject.toml`` has it: to ask for the installed one costs a running agent megabytes.
VERSION: Final = "1.0.0"
#: What this agent can that older ones cannot, as heartbeats tell it.
ABILITIES: Final = ("resize",)
