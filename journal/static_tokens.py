"""Static bearer tokens: those of the settings, and those of a file that may change at any time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path

import structlog
from django.conf import settings

from journal.conf import AccessToken
from journal.known_settings import headroom
from journal.watched_file import LOOK_SECONDS, WatchedFile

log = structlog.get_logger(__name__)

ReadTokens = Callable[[Path], Sequence[AccessToken]]


class TokenFile:
    """The tokens of a file; of one that cannot be used any more, those that it had before.

    Args:
        path: The file.
        read: Reads it; raises ``ValueError`` or ``OSError`` when it cannot be used.
        look_seconds: Shortest time between two looks at the file.
        clock: Seconds that only grow.

    Raises:
        ValueError: the file cannot be used; ``OSError`` likewise.
    """

    def __init__(
        self,
        path: Path,
        read: ReadTokens,
        *,
        look_seconds: float = LOOK_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read = read
        self._file = WatchedFile(path, look_seconds=look_seconds, clock=clock)
        self._tokens = tuple(read(path))

    def tokens(self) -> Sequence[AccessToken]:
        """Return the tokens that are valid now."""
        if self._file.has_changed():
            path = self._file.path
            try:
                self._tokens = tuple(self._read(path))
            except (OSError, ValueError) as error:
                log.error("token_file_ignored", path=str(path), problem=str(error))  # noqa: TRY400 - one line
            else:
                log.info("token_file_loaded", path=str(path), tokens=len(self._tokens))
        return self._tokens


def current_tokens() -> Sequence[AccessToken]:
    """Return every token that is valid now."""
    wanted = headroom()
    path: Path | None = wanted.tokens_file
    given: tuple[AccessToken, ...] = wanted.tokens
    return given if path is None else (*given, *_file(path).tokens())


@lru_cache(maxsize=1)
def _file(path: Path) -> TokenFile:
    return TokenFile(path, settings.HEADROOM.read_tokens)
