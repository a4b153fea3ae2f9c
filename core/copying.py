"""Lines of COPY and array literals as text: a row costs a microsecond, not thirty.

The driver renders value by value; a pass of the loop writes hundreds of thousands of them, nearly
all of which are numbers or need no escaping.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from django.db import connection

_CHUNK_LINES = 5000
_ESCAPES = str.maketrans({"\\": r"\\", "\t": r"\t", "\n": r"\n", "\r": r"\r"})


def copy_lines(statement: str, lines: Iterable[str]) -> None:
    """Send lines to a COPY statement.

    Args:
        statement: ``COPY table (columns) FROM STDIN``.
        lines: Rows: fields in text format, with tabs between, without line ends.

    Raises:
        django.db.Error: What the database refuses.
    """
    waiting = list(lines)
    if not waiting:
        return
    with (
        connection.wrap_database_errors,  # what COPY raises is not Django's own otherwise
        connection.cursor() as cursor,
        cursor.copy(statement) as copy,
    ):
        for start in range(0, len(waiting), _CHUNK_LINES):
            copy.write("\n".join(waiting[start : start + _CHUNK_LINES]) + "\n")


def copy_text(text: str) -> str:
    """Return a text as a field of COPY."""
    return text if text.isprintable() and "\\" not in text else text.translate(_ESCAPES)


def copy_time(moment: datetime) -> str:
    """Return a moment as a field of COPY."""
    return moment.isoformat(" ")


def text_array(texts: Iterable[str | None]) -> str:
    """Return the literal of a ``text[]``; ``None`` is a null."""
    quoted = [
        f'"{text}"' if text and '"' not in text and "\\" not in text else _quoted(text)
        for text in texts
    ]
    return "{" + ",".join(quoted) + "}"


def _quoted(text: str | None) -> str:
    if text is None:
        return "NULL"
    text = text.replace("\\", r"\\").replace('"', r"\"")
    return f'"{text}"'


def number_array(numbers: Iterable[object]) -> str:
    """Return the literal of an array of whole numbers or UUIDs; ``None`` is a null."""
    written = ["NULL" if number is None else str(number) for number in numbers]
    return "{" + ",".join(written) + "}"
