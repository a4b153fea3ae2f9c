"""Request ids of failover work in logs (spec failover, 14.5)."""

from __future__ import annotations

from uuid import uuid4

import structlog

ID_PREFIX = "failover-"


def new_global_request_id() -> str:
    """Return the id of a run or of a validation."""
    return f"{ID_PREFIX}{uuid4()}"


def bound_logger() -> structlog.stdlib.BoundLogger:
    """Return a logger whose records say in which run (``greq``) and for which VM (``req``).

    Both come from the context, see ``structlog.contextvars``; what is not bound there is empty.
    """
    known = structlog.contextvars.get_contextvars()
    logger: structlog.stdlib.BoundLogger = structlog.get_logger("failover").bind(
        greq=known.get("greq", ""), req=known.get("req", "")
    )
    return logger
