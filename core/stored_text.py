"""Texts of callers: whether they can be stored, and how a message shows them."""

from __future__ import annotations

from journal.errors import InvalidInput


def text_problem(text: str, max_length: int | None = None) -> str:
    """Return why a text cannot be stored; empty when it can.

    Args:
        text: It may have no NUL character and no half of a surrogate pair.
        max_length: Longest accepted, in characters.
    """
    if max_length is not None and len(text) > max_length:
        return f"has {len(text)} characters, at most {max_length} are allowed"
    if any(char == "\x00" or "\ud800" <= char <= "\udfff" for char in text):
        return "contains a character that cannot be stored"
    return ""


def check_text(text: str, *, path: str, max_length: int) -> str:
    """Return a text that can be stored.

    Args:
        path: Where it stands, for the message.
        max_length: Longest accepted, in characters.

    Raises:
        InvalidInput: see :func:`text_problem`.
    """
    found = text_problem(text, max_length)
    if found:
        raise InvalidInput(f"{path}: {found}", field=path)
    return text


def shortened(text: str, max_length: int = 64) -> str:
    """Return a text for a message: printable, on one line, and not longer than needed."""
    shown = "".join(char if char.isprintable() else "?" for char in text[: max_length + 1])
    return shown if len(shown) <= max_length else f"{shown[:max_length]}…"
