"""What Nova's configuration says of how it asks a Placement (docs/gateway.md, times of clients)."""

from __future__ import annotations

from configparser import ConfigParser, Error
from typing import Final

SECTION: Final = "placement"
RETRIES: Final = ("connect_retries", "status_code_retries")


class UnreadableError(ValueError):
    """The text is no configuration of an OpenStack service."""


def client_problems(text: str, *, longest_seconds: float) -> list[str]:
    """Return what of Nova's ``[placement]`` does not fit, a line each.

    Args:
        text: A ``nova.conf``.
        longest_seconds: What a request may take.

    Raises:
        UnreadableError: it cannot be understood.
    """
    options = _options(text)
    problems = []
    timeout = options.get("timeout", "")
    if timeout and not _is_above(timeout, longest_seconds):
        problems.append(
            f"timeout = {timeout}: Nova gives up before a request has to end, {longest_seconds:g} s"
        )
    problems.extend(
        f"{name} = {options.get(name) or 'not set'}: at least 1 helps while a database fails over"
        for name in RETRIES
        if not _is_above(options.get(name, ""), 0.0)
    )
    return problems


def _options(text: str) -> dict[str, str]:
    """Return the options of the section, named as oslo.config reads them; the last one counts."""
    parser = ConfigParser(
        strict=False, interpolation=None, allow_no_value=True, default_section="\0"
    )
    try:
        parser.read_string(text)
    except Error as error:
        raise UnreadableError(str(error).splitlines()[0]) from error
    if not parser.has_section(SECTION):
        return {}
    return {name.replace("-", "_"): (value or "").strip() for name, value in parser.items(SECTION)}


def _is_above(text: str, limit: float) -> bool:
    try:
        return float(text) > limit
    except ValueError:
        return False
