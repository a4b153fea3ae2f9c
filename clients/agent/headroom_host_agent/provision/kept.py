"""What was before us on the host, and which names and numbers were given: outlives the store.

An agent whose store is lost asks the server for everything anew and finds by this what it made,
instead of making it twice. The file is small and seldom written.
"""

from __future__ import annotations

import json
import threading
from pathlib import Path

from headroom_host_agent.files import replace_file
from headroom_host_agent.provision.stored import StoreError

FILE = "kept.json"  # in the data folder


class Kept:
    """Values by name in one file; safe to use from threads of one process.

    Raises:
        StoreError: The file cannot be read, or is none of ours: an operator has to look.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._lock = threading.Lock()
        self._read()

    def get(self, name: str) -> str | None:
        """Return a value, None when none is kept.

        Raises:
            StoreError: The file cannot be read.
        """
        with self._lock:
            return self._read().get(name)

    def put(self, name: str, value: str) -> None:
        """Keep a value: it is on the disk afterwards, or all is as before.

        Raises:
            StoreError: The file cannot be read or written.
        """
        with self._lock:
            values = self._read()
            if values.get(name) == value:
                return
            try:
                replace_file(self._path, json.dumps({**values, name: value}, sort_keys=True))
            except OSError as error:
                raise StoreError(f"{self._path} cannot be written: {error.strerror}") from None

    def _read(self) -> dict[str, str]:
        try:
            found = json.loads(self._path.read_bytes())
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise StoreError(f"{self._path} cannot be read: {error}") from None
        if not isinstance(found, dict) or not all(isinstance(one, str) for one in found.values()):
            raise StoreError(f"{self._path} holds no texts by name")
        return found
