"""Where processes keep the files that they share while they run, if nobody chose a directory."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def usual_state_directory() -> Path:
    """Return this user's directory below that for temporary files; nothing is made."""
    return Path(tempfile.gettempdir()) / f"headroom-{os.geteuid()}"
