"""Agents that speak to Headroom in this process."""

from __future__ import annotations

import base64
import hashlib
import json
import time
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from django.http import HttpResponse
from django.test import Client
from headroom_host_agent.provision.signing.keys import sign
from headroom_host_agent.provision.signing.v2 import SignedRequest, enrolment_bytes, request_bytes
from headroom_host_agent.server.identity import Identity, new_identity

from hosts.agents.enrolment import create_token
from hosts.agents.leases import fence
from journal.actors import Actor

POOL = {"page_size_bytes": 1 << 30, "total": 4, "free": 4, "bytes": 4 << 30}


def make_token(name: str = "*", *, uses: int = 1, lifetime: timedelta = timedelta(hours=1)) -> str:
    return create_token(
        name_glob=name, uses=uses, lifetime=lifetime, actor=Actor(name="ann"), request_id="r"
    )


def enrolment(identity: Identity, token: str, name: str = "h1") -> dict[str, Any]:
    digest = hashlib.sha256(token.encode()).hexdigest()
    proof = sign(identity.seed_bytes, enrolment_bytes(digest, name))
    return {
        "token": token,
        "name": name,
        "public_key": base64.b64encode(identity.public_key).decode(),
        "proof": base64.b64encode(proof).decode(),
    }


def send_enrolment(document: object) -> HttpResponse:
    return Client().post("/hosts/v1/enrol", json.dumps(document), content_type="application/json")  # type: ignore[return-value]  # the test client's own response


def enrolled(name: str = "h1") -> Identity:
    identity = new_identity()
    answer = send_enrolment(enrolment(identity, make_token(), name))
    assert answer.status_code == 201, answer.content
    told = json.loads(answer.content)
    return replace(
        identity, host_id=told["host_id"], kid=told["kid"], fence_epoch=told["fence_epoch"]
    )


def fence_host(name: str) -> None:
    """Fence a host, of which an agent enrolled for it."""
    enrolled(name)
    fence(name, actor=Actor(name="ann"), request_id="r", reason="its disk fails")


def report(**changes: Any) -> dict[str, Any]:
    kinds = ("cpu", "memory", "disk", "network", "disk_io")
    amounts = dict.fromkeys(("effective_limit", "allocated", "available", "pending", "over_by"), 0)
    resource = {"capacity": 64, **amounts, "oversub_ratio": 1.0, "source": "detected"}
    return {
        **{kind: {"type": kind, **resource, "stale": False} for kind in kinds},
        "allocations": [],
        "generated_at": "2026-01-02T03:04:05+00:00",
        "boot_id": None,
        "numa": [],
        "hugepages": [POOL],
        **changes,
    }


@dataclass(frozen=True, kw_only=True)
class Signed:
    """A request with its signature; what is replaced is not signed anew."""

    path: str
    body: bytes
    headers: dict[str, str]
    method: str = "PUT"

    def send(self, *, query: str = "") -> HttpResponse:
        return Client().generic(
            self.method,
            self.path + query,
            self.body,
            content_type="application/json",
            headers=self.headers,
        )  # type: ignore[return-value]  # the test client's own response


def signed(identity: Identity, document: object = None, **changes: Any) -> Signed:
    """Return a signed report; ``changes`` are fields of what is signed, else what is sent."""
    body = json.dumps(report() if document is None else document).encode()
    known: dict[str, Any] = {
        "method": "PUT",
        "path": f"/hosts/v1/{identity.host_id}/resources",
        "body": body,
        "timestamp": int(time.time()),
        "nonce": hashlib.md5(str(time.perf_counter_ns()).encode()).hexdigest(),  # noqa: S324
        "host_id": identity.host_id,
        "kid": identity.kid,
        "fence_epoch": identity.fence_epoch,
    }
    request = SignedRequest(**(known | changes))
    signature = sign(identity.seed_bytes, request_bytes(request))
    headers = {
        "X-Host-Id": request.host_id,
        "X-Host-Key": request.kid,
        "X-Host-Timestamp": str(request.timestamp),
        "X-Host-Nonce": request.nonce,
        "X-Host-Epoch": str(request.fence_epoch),
        "X-Host-Signature": base64.b64encode(signature).decode(),
    }
    return Signed(path=request.path, body=request.body, headers=headers, method=request.method)
