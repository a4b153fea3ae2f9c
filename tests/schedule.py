"""What beat sends, with the jobs of all apps."""

from __future__ import annotations

from typing import Any

from config.celery_app import app
from core.jobs import BEAT_SCHEDULE


def beat_schedule() -> dict[str, dict[str, Any]]:
    app.loader.import_default_modules()
    return BEAT_SCHEDULE
