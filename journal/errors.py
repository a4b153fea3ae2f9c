"""Errors that carry a stable code, a message with the numbers, and facts.

Each API family maps them to its own shape; commands print the message and exit.
"""

from __future__ import annotations


def one_line(text: str) -> str:
    """Return a text as one line that can be printed; what a caller sent may stand in it."""
    if text.isprintable():
        return text
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())


class HeadroomError(Exception):
    """A refusal with a reason.

    Attributes:
        code: Stable word, listed in ``docs/errors.md``; never reused for another meaning.
        message: One line for a person, with the numbers in it; made one line here.
        facts: The same numbers for a program.
        status: HTTP status of the answer that tells it.
    """

    code = "internal"
    status: int = 500

    def __init__(self, message: str, *, code: str | None = None, **facts: object) -> None:
        self.message = one_line(message)
        super().__init__(self.message)
        self.code = code or type(self).code
        self.facts = facts


class Unavailable(HeadroomError):  # noqa: N818 - a state of the system, not a defect
    """The same request may succeed a little later.

    Attributes:
        retry_after_seconds: When to try again.
    """

    code = "unavailable"
    status = 503
    usual_retry_seconds = 5

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        retry_after_seconds: int | None = None,
        **facts: object,
    ) -> None:
        super().__init__(message, code=code, **facts)
        self.retry_after_seconds = retry_after_seconds or self.usual_retry_seconds

    @property
    def headers(self) -> dict[str, str]:
        """Headers that the answer has to carry."""
        return {"Retry-After": str(self.retry_after_seconds)}


class Busy(Unavailable):
    """A lock was not free in time."""

    code = "busy"
    usual_retry_seconds = 1


class NotReady(HeadroomError):  # noqa: N818 - a state of the system, not a defect
    """Data that an answer needs has not been computed yet."""

    code = "not_ready"
    status = 503


class InvalidInput(HeadroomError):  # noqa: N818 - names the caller's mistake
    """Input that cannot be processed: the message names the field and what is allowed."""

    code = "invalid_input"
    status = 400
