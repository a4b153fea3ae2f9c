"""What the log shows of bodies: the beginning, without secrets (spec placement, 8.8)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

#: Member of a JSON object whose name tells that its value is nobody's business. The value may be
#: cut off.
_SECRET: Final = re.compile(
    r'("[^"]*(?:password|passwd|secret|token|credential)[^"]*"\s*:\s*)'
    r'(?:"(?:[^"\\]|\\.)*"?|[^,{}\[\]\s"]+)',
    re.IGNORECASE,
)
MASKED: Final = r'\1"***"'


def shown_body(pieces: Iterable[bytes], *, most_bytes: int) -> str:
    """Return the beginning of a body as text, secrets masked.

    Args:
        pieces: Of the body, in their order.
        most_bytes: How much of it to show.
    """
    begin = bytearray()
    for piece in pieces:
        begin += piece[: most_bytes - len(begin)]
        if len(begin) >= most_bytes:
            break
    return _SECRET.sub(MASKED, begin.decode(errors="replace"))
