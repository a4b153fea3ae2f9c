"""``/hosts/v1``: what agents call; and what operators read of it (spec hosts, D.6)."""

from __future__ import annotations

import base64
import binascii
import uuid
from dataclasses import dataclass
from typing import Any, ClassVar

import orjson
from django.conf import settings
from django.http import HttpRequest, HttpResponse
from rest_framework.exceptions import MethodNotAllowed
from rest_framework.request import Request

from core.api import (
    JSON,
    SERVER_ERROR,
    JsonErrorView,
    ProblemView,
    json_answer,
)
from hosts.agents.commands import LONGEST_MESSAGE, MOST_OPEN, Done, end_commands
from hosts.agents.enrolment import Enrolment, enrol
from hosts.agents.errors import AgentRefused
from hosts.agents.keys import drop_key, rotate_key
from hosts.agents.leases import Heartbeat, renew
from hosts.agents.models import HostAgent
from hosts.agents.reports import store_report
from hosts.agents.server_keys import told_keys
from hosts.agents.signed import agent_of, key_of
from hosts.domain.liveness import Beat
from hosts.metrics import REJECTED
from journal.auth import RULE_API_READ
from journal.bodies import body_of
from journal.clock import database_now
from journal.errors import HeadroomError
from journal.middleware import request_id_of

BODY_MIB = 4
LONGEST_TEXT = 255
LONGEST_VERSION = 64
MOST_ABILITIES = 32


class AgentView(JsonErrorView):
    """Errors as ``{"error": {"code", "message", "field", "details"}}``; keys are no tokens."""

    http_request: HttpRequest

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Check the method alone: the handlers say who sent it."""
        if str(request.method).lower() not in self.http_method_names:
            raise MethodNotAllowed(str(request.method))

    def body(self) -> bytes:
        """Return the body, of 4 MiB at most."""
        return body_of(self.http_request, limit_mib=BODY_MIB)

    def document(self, body: bytes) -> object:
        """Return a body's JSON.

        Raises:
            AgentRefused: It is none, or has a character that the database cannot keep.
        """
        try:
            document: object = orjson.loads(body)
        except orjson.JSONDecodeError as error:
            raise AgentRefused(f"the body is no JSON: {error}", code="invalid_report") from None
        if b"\\u0000" in body:
            raise AgentRefused("the body has a NUL character", code="invalid_report")
        return document

    def refusal(self, error: Exception, status: int) -> HttpResponse:
        """Return the error for programs."""
        beside: dict[str, object] = {"request_id": request_id_of(self.http_request)}
        code = "request_refused"
        told: dict[str, object] = {"code": code, "message": self.error_text}
        if isinstance(error, HeadroomError) and status != SERVER_ERROR:
            code = error.code
            told = {"code": code, "message": error.message}
            facts = dict(error.facts)
            field = facts.pop("field", None)
            told |= {"field": field} if field else {}
            beside |= {"tombstone": facts.pop("tombstone")} if "tombstone" in facts else {}
            told |= {"details": facts} if facts else {}
        REJECTED.labels(code=code).inc()
        content = orjson.dumps({"error": told, **beside})
        return HttpResponse(content, content_type=JSON, status=status)


class EnrolView(AgentView):
    """``POST /hosts/v1/enrol``: an agent with a token becomes known."""

    http_method_names = ["post"]
    path_label = "/hosts/v1/enrol"

    def post(self, request: Request) -> HttpResponse:
        """Return who the agent is from now on: 201, or 200 when it asks again."""
        asked = _enrolment(self.document(self.body()))
        key, is_new = enrol(asked, request_id=request_id_of(self.http_request))
        chosen, now = settings.HEADROOM.agents, database_now()
        answer = {
            "host_id": str(key.agent.uuid),
            "kid": key.kid,
            "fence_epoch": key.agent.fence_epoch,
            "server_time": now.isoformat(),
            "server_public_keys": told_keys(now),
            "heartbeat_s": chosen.heartbeat_seconds,
            "lease_ttl_s": chosen.lease_seconds,
            "poll_wait_s": chosen.poll_wait_seconds,
        }
        return json_answer(answer, status=201 if is_new else 200)


class HeartbeatView(AgentView):
    """``POST /hosts/v1/ID/heartbeat``: an agent is alive."""

    http_method_names = ["post"]
    path_label = "/hosts/v1/{id}/heartbeat"

    def post(self, request: Request, host_id: uuid.UUID) -> HttpResponse:
        """Renew the lease; the answer says for how long, and when to come again."""
        body = self.body()
        agent = agent_of(self.http_request, body, path_id=host_id)
        heard = _heartbeat(self.document(body))
        request_id = request_id_of(self.http_request)
        renewed = renew(agent, heard.of_lease, request_id=request_id)
        if heard.done:
            end_commands(agent.pk, heard.done, request_id=request_id)
        ended = {one.id for one in heard.done}
        readiness = renewed.readiness
        chosen = settings.HEADROOM.agents
        answer = {
            "heartbeat_s": chosen.heartbeat_seconds,
            "lease_ttl_s": chosen.lease_seconds,
            "server_time": renewed.server_time.isoformat(),
            "fence_epoch": agent.fence_epoch,
            "change_seq": agent.change_seq,
            "timeline": str(agent.timeline),
            "liveness": renewed.liveness.value,
            "readiness": {
                "is_ready": readiness.is_ready,
                "reason": readiness.reason,
                "message": readiness.message,
            },
            "commands": [one for one in renewed.commands if one["id"] not in ended],
            "server_public_keys": renewed.server_keys,
        }
        if renewed.wanted_version:
            answer["wanted_version"] = renewed.wanted_version
        return json_answer(answer)


class ResourcesView(AgentView):
    """``PUT /hosts/v1/ID/resources``: the report of an agent."""

    http_method_names = ["put"]
    path_label = "/hosts/v1/{id}/resources"

    def put(self, request: Request, host_id: uuid.UUID) -> HttpResponse:
        """Keep the report; 204 also for one that is older than the one that is kept."""
        body = self.body()
        agent = agent_of(self.http_request, body, path_id=host_id)
        store_report(agent, self.document(body))
        return HttpResponse(status=204)


class KeysView(AgentView):
    """``POST /hosts/v1/ID/keys``: an agent goes on with another key."""

    http_method_names = ["post"]
    path_label = "/hosts/v1/{id}/keys"

    def post(self, request: Request, host_id: uuid.UUID) -> HttpResponse:
        """Return the new key: 201, or 200 when it asks again."""
        body = self.body()
        signed_with = key_of(self.http_request, body, path_id=host_id)
        document = _key_document(self.document(body))
        key, is_new = rotate_key(
            signed_with,
            public_key=_bytes(_text(document, "public_key", longest=LONGEST_TEXT)),
            proof=_bytes(_text(document, "proof", longest=LONGEST_TEXT)),
            request_id=request_id_of(self.http_request),
        )
        return json_answer({"kid": key.kid}, status=201 if is_new else 200)


class KeyView(AgentView):
    """``DELETE /hosts/v1/ID/keys/KID``: an agent is done with an old key."""

    http_method_names = ["delete"]
    path_label = "/hosts/v1/{id}/keys/{kid}"

    def delete(self, request: Request, host_id: uuid.UUID, kid: str) -> HttpResponse:
        """End the key."""
        agent = agent_of(self.http_request, self.body(), path_id=host_id)
        drop_key(agent, kid, request_id=request_id_of(self.http_request))
        return HttpResponse(status=204)


class ReportView(ProblemView):
    """``GET /api/v1/hosts/NAME/resources``: what the host's agent reported last."""

    rule: ClassVar[str] = RULE_API_READ
    http_method_names = ["get"]
    path_label = "/api/v1/hosts/{name}/resources"

    def get(self, request: Request, name: str) -> HttpResponse:
        """Return the report with when it came."""
        agent = HostAgent.objects.filter(host_name=name).first() if name.isprintable() else None
        if agent is None or agent.report is None or agent.reported_at is None:
            raise NotReported(f"no agent of a host {name!r} has reported")
        return json_answer(agent.report | {"reported_at": agent.reported_at.isoformat()})


class NotReported(HeadroomError):  # noqa: N818 - a state of the host, not a defect
    """There is no report of a host."""

    code = "host_not_reported"
    status = 404


def _enrolment(document: object) -> Enrolment:
    """Return what an agent asks.

    Raises:
        AgentRefused: A field is missing or malformed.
    """
    document = _key_document(document)
    texts = {
        name: _text(document, name, longest=LONGEST_TEXT)
        for name in ("token", "name", "public_key", "proof")
    }
    version = document.get("agent_version", "")
    if not isinstance(version, str) or len(version) > LONGEST_VERSION:
        raise _malformed("agent_version")
    return Enrolment(
        token=texts["token"],
        name=texts["name"],
        public_key=_bytes(texts["public_key"]),
        proof=_bytes(texts["proof"]),
        agent_version=version,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Heard:
    """A heartbeat, and what the agent says of commands."""

    of_lease: Heartbeat
    done: tuple[Done, ...]


def _heartbeat(document: object) -> _Heard:
    """Return what an agent says of itself.

    Raises:
        AgentRefused: A field is missing or malformed.
    """
    if not isinstance(document, dict):
        raise AgentRefused("the body must be an object", code="invalid_heartbeat")
    try:
        run_id = str(uuid.UUID(document["run_id"]))
    except (KeyError, ValueError, TypeError, AttributeError):
        raise _wrong_beat("run_id") from None
    boot_id = document.get("boot_id") or ""
    if not isinstance(boot_id, str) or len(boot_id) > LONGEST_VERSION or not boot_id.isprintable():
        raise _wrong_beat("boot_id")
    flags = {name: document.get(name, False) for name in ("resynced", "takeover")}
    counts = {name: document.get(name, 0) for name in ("uptime_s", "outbox_depth")}
    for name, count in counts.items():
        if type(count) is not int or not 0 <= count < 2**31:
            raise _wrong_beat(name)
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise _wrong_beat(name)
    version = document.get("version")
    if version is not None and (not isinstance(version, str) or len(version) > LONGEST_VERSION):
        raise _wrong_beat("version")
    heartbeat = Heartbeat(
        beat=Beat(
            run_id=run_id,
            boot_id=boot_id,
            is_resynced=flags["resynced"],
            takes_over=flags["takeover"],
        ),
        uptime_seconds=counts["uptime_s"],
        outbox_depth=counts["outbox_depth"],
        version=version,
        abilities=_abilities(document.get("can")),
    )
    return _Heard(of_lease=heartbeat, done=_done(document.get("done")))


def _abilities(told: object) -> tuple[str, ...]:
    """Return what an agent says that it can; nothing of one that is older than the word."""
    words = [] if told is None else told
    if not isinstance(words, list) or len(words) > MOST_ABILITIES:
        raise _wrong_beat("can")
    if not all(isinstance(one, str) and len(one) <= LONGEST_VERSION for one in words):
        raise _wrong_beat("can")
    return tuple(sorted(set(words)))


def _done(told: object) -> tuple[Done, ...]:
    """Return what an agent says of commands."""
    if told is None:
        return ()
    if not isinstance(told, list) or len(told) > MOST_OPEN:
        raise _wrong_beat("done")
    found = []
    for one in told:
        if not isinstance(one, dict) or set(one) - {"id", "ok", "message"}:
            raise _wrong_beat("done")
        identity, is_ok, message = one.get("id"), one.get("ok"), one.get("message", "")
        if not isinstance(identity, str) or len(identity) > LONGEST_VERSION:
            raise _wrong_beat("done")
        if not isinstance(is_ok, bool) or not isinstance(message, str):
            raise _wrong_beat("done")
        found.append(Done(id=identity, is_ok=is_ok, message=message[:LONGEST_MESSAGE]))
    return tuple(found)


def _key_document(document: object) -> dict[str, Any]:
    if not isinstance(document, dict):
        raise AgentRefused("the body must be an object", code="invalid_enrolment")
    return document


def _text(document: dict[str, object], name: str, *, longest: int) -> str:
    value = document.get(name)
    if not isinstance(value, str) or not 0 < len(value) <= longest or not value.isprintable():
        raise _malformed(name)
    return value


def _bytes(text: str) -> bytes:
    """Return what a text encodes; nothing when it is no base64, which is no key and no proof."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return b""


def _malformed(name: str) -> AgentRefused:
    return AgentRefused(f"{name} is missing or malformed", code="invalid_enrolment", field=name)


def _wrong_beat(name: str) -> AgentRefused:
    return AgentRefused(f"{name} is missing or malformed", code="invalid_heartbeat", field=name)
