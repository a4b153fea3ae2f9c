#!/usr/bin/env python
"""Run Headroom's management commands."""

from __future__ import annotations

import os
import sys

PIPE_CLOSED = 141
"""What shells say of a program that a closed pipe ended."""


def main() -> None:
    """Hand the command line to Django."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    from django.core.management import execute_from_command_line  # noqa: PLC0415 - settings first

    try:
        execute_from_command_line(sys.argv)
        sys.stdout.flush()
    except BrokenPipeError:  # who reads has read enough, such as `head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(PIPE_CLOSED)


if __name__ == "__main__":
    main()
