"""Structured logs: one configuration for web, worker, beat and commands."""

from __future__ import annotations

import logging.config
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import structlog
from structlog.typing import Processor


def logging_tree(
    *, json_lines: bool, level: str, file: Path | None = None, more: Sequence[Processor] = ()
) -> dict[str, Any]:
    """Configure structlog and the standard library to write the same lines.

    Args:
        json_lines: JSON for machines, coloured text for people otherwise.
        level: Least severe level that is written.
        more: What else adds keys to every line.
        file: Where lines are added; opened again when it was moved away. Standard error if none.
    """
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        *more,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    renderer: Any = (
        structlog.processors.JSONRenderer() if json_lines else structlog.dev.ConsoleRenderer()
    )
    tail: list[Any] = [structlog.stdlib.ProcessorFormatter.remove_processors_meta]
    if json_lines:
        tail.append(structlog.processors.format_exc_info)
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    tree: dict[str, Any] = {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {
            "structured": {
                "()": structlog.stdlib.ProcessorFormatter,
                "foreign_pre_chain": shared,
                "processors": [*tail, renderer],
            }
        },
        "handlers": {
            "lines": {
                "formatter": "structured",
                **(
                    {"class": "logging.StreamHandler"}
                    if file is None
                    else {
                        "class": "logging.handlers.WatchedFileHandler",
                        "filename": str(file),
                        "encoding": "utf-8",
                        "delay": True,
                    }
                ),
            },
        },
        "root": {"handlers": ["lines"], "level": level},
    }
    logging.config.dictConfig(tree)
    return tree
