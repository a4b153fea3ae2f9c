"""Bodies of API requests: judged by their head, read once, bounded in size and in values."""

from __future__ import annotations

import numpy as np
from django.core.exceptions import RequestDataTooBig
from django.http import HttpRequest

from journal.errors import HeadroomError
from journal.known_settings import headroom


class LengthRequired(HeadroomError):  # noqa: N818 - named as its status
    """The body comes in chunks, without saying how long it will be."""

    code = "length_required"
    status = 411

    def __init__(self) -> None:
        super().__init__("send the body with a Content-Length, not in chunks")


def body_of(request: HttpRequest, *, limit_mib: int) -> bytes:
    """Return the body of a request; to be called once.

    Args:
        request: Django's request, whose own limit does not hold here: it is one for all paths.
        limit_mib: Largest body accepted.

    Raises:
        LengthRequired: the body comes in chunks.
        RequestDataTooBig: it is larger, or has more values than the settings allow.
    """
    body = unparsed_body_of(request, limit_mib=limit_mib)
    check_values(body)
    return body


def unparsed_body_of(request: HttpRequest, *, limit_mib: int) -> bytes:
    """Return the body of a request that nobody here parses; to be called once.

    Raises:
        LengthRequired: the body comes in chunks.
        RequestDataTooBig: it is larger.
    """
    if "HTTP_TRANSFER_ENCODING" in request.META:
        raise LengthRequired
    announced = str(request.META.get("CONTENT_LENGTH") or "0")
    if not announced.isdecimal() or len(announced) > 18 or int(announced) > limit_mib << 20:  # noqa: PLR2004 - digits
        raise RequestDataTooBig(f"The body may have {limit_mib} MiB at most.")
    return request.read()


def check_values(body: bytes) -> None:
    """Refuse JSON that would become more objects than memory is meant for.

    Each value but the first of a list or object follows a comma, so that commas and brackets
    bound them from above at the cost of a look at the bytes; those within texts count as well.

    Raises:
        RequestDataTooBig: there are more than the settings allow.
    """
    most = headroom().web.most_json_values
    if len(body) > most and _separators(body) > most:
        raise RequestDataTooBig(f"The body may have {most} values at most.")


def _separators(body: bytes) -> int:
    """Return how many commas and brackets a body has, in columns: it may be megabytes."""
    letters = np.frombuffer(body, dtype=np.uint8)
    return sum(int(np.count_nonzero(letters == letter)) for letter in b",[{")
