"""Tells the server what became of reservations: signed when it is sent (spec hosts, D.5, D.8)."""

from __future__ import annotations

import json
from collections.abc import Mapping

from headroom_host_agent.provision.feedback import (
    RETRYABLE_STATUSES,
    NotToldError,
    RefusedError,
)
from headroom_host_agent.provision.signing.keys import sign
from headroom_host_agent.provision.signing.v2 import (
    canonical_json,
    parse_json,
    result_bytes,
    seal,
)
from headroom_host_agent.provision.stored import Message
from headroom_host_agent.server import client as http
from headroom_host_agent.server.identity import Enrolled
from headroom_host_agent.server.refusals import ENDING

_PARTS: Mapping[str, str] = {"result": "result", "death": "result", "deleted": "deleted"}
_UNHEARD = frozenset({"clock_skew", "replayed", "bad_signature", "bad_auth_header"})


class RestFeedback:
    """Delivers messages. The key may have changed since one was written, so it is signed here."""

    def __init__(self, client: http.Client, enrolled: Enrolled) -> None:
        self._client, self._enrolled = client, enrolled

    def tell(self, message: Message) -> None:
        """Deliver one.

        Raises:
            NotToldError: It is to be tried again.
            RefusedError: The server does not take it.
        """
        identity = self._enrolled.identity
        document = parse_json(message.body)
        if not isinstance(document, dict):
            raise RefusedError("it is no document")
        signature = sign(identity.seed_bytes, result_bytes(document))
        sealed = seal(document, kid=identity.kid, signature=signature)
        gwid, _, kind = message.key.split(":")
        request = http.Request(
            method="PUT",
            path=f"/hosts/v1/{identity.host_id}/reservations/{gwid}/{_PARTS[kind]}",
            body=json.dumps(sealed).encode(),
        )
        try:
            self._client.signed(identity, request)
        except http.ServerError as error:
            raise NotToldError(str(error)) from None
        except http.RefusedError as error:
            epoch = error.details.get("fence_epoch")
            is_ours_old = isinstance(epoch, int) and epoch > identity.fence_epoch
            if is_ours_old and isinstance(epoch, int):
                self._enrolled.enter_epoch(epoch)
            is_unheard = error.code in ENDING | _UNHEARD or error.status in RETRYABLE_STATUSES
            if is_unheard or is_ours_old:
                raise NotToldError(str(error)) from None
            raise RefusedError(str(error)) from None


def written(document: Mapping[str, object]) -> bytes:
    """Return a message's body: the document, without a signature."""
    return canonical_json(dict(document))
