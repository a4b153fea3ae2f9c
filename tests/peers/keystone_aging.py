"""Print a token as it would be if it had been issued earlier; run by Keystone's own Python.

Reading a Fernet token, moving its end and sealing it again with Keystone's key gives a token that
Keystone itself holds for expired, without waiting for it.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgpack
from cryptography.fernet import Fernet

EXPIRES_AT = 4  # place in the payload of a token that is scoped to a project


def main() -> None:
    """Take the key directory, the token and the seconds by which it ends earlier."""
    directory, token, seconds = sys.argv[1:]
    newest = max((path for path in Path(directory).iterdir()), key=lambda path: int(path.name))
    seal = Fernet(newest.read_bytes())
    payload = msgpack.unpackb(seal.decrypt(token + "=" * (-len(token) % 4)))
    payload[EXPIRES_AT] -= float(seconds)
    print(seal.encrypt(msgpack.packb(payload)).rstrip(b"=").decode())  # noqa: T201 - its answer


main()
