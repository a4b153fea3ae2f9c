"""Going on with another key, which the present one vouches for (spec hosts, D.4)."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from headroom_host_agent.provision.signing.keys import key_id
from headroom_host_agent.server.client import Client
from headroom_host_agent.server.identity import (
    Enrolled,
    load_identity,
    new_identity,
    save_identity,
)

NEXT = "next-identity.json"  # in the data folder


def rotate(folder: Path, client: Client, enrolled: Enrolled) -> str:
    """Return the name of the new key.

    It is kept before it is sent, so that a lost answer is asked for again with the same key.

    Raises:
        RefusedError: The server does not take it; the old key stays.
        ServerError: There is no answer.
        IdentityError: A key cannot be read or kept.
    """
    pending = load_identity(folder, file=NEXT)
    if pending is None:
        pending = new_identity()
        save_identity(folder, pending, file=NEXT)
    identity = enrolled.identity
    client.put_key(identity, pending)
    kid = key_id(pending.public_key)
    enrolled.take_key(replace(pending, kid=kid))
    with suppress(FileNotFoundError):
        (folder / NEXT).unlink()
    return kid
