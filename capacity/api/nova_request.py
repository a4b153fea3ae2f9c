"""From the body that Nova sends to the engine's request (spec scheduling, 2.1-2.3, 2.7, 3).

The JSON is decoded once, by a typed decoder that makes of the host list, which is most of a large
body, nothing but columns of names (:mod:`capacity.api.host_lists`); the engine turns them into a
row mask, and pipelines that ignore the caller's choice use them for nothing but to cut the answer.
What does not have the types that Nova sends is decoded again without any, and checked field by
field. Missing fields and ``null`` are zero values, unknown fields are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import msgspec
import orjson
from pydantic import BaseModel, Field

from capacity.api.host_lists import read_host_list
from capacity.nova.nova_call import PipelineNotInferredError, inferred_pipeline
from core.api import InvalidCall
from core.json_bodies import (
    Body,
    Elements,
    Id,
    Members,
    Name,
    Signed,
    Text,
    checked,
    parsed,
    whole,
)
from core.stored_text import shortened
from journal.collector import paused_collector
from journal.errors import InvalidInput
from scheduling.host_names import HostWeights
from scheduling.intents import (
    DOMAIN_HINT,
    RESOURCE_GROUP_HINT,
    SOURCE_HOST_HINT,
    CallOptions,
    hint_text,
    intent_from_hints,
)
from scheduling.request import (
    InstanceGroup,
    PlacementRequest,
    RequestedDestination,
    max_per_host_from_rule,
)
from scheduling.reservations import KIND_COMMITTED, KIND_FAILOVER, KIND_IN_FLIGHT, RESERVATION_KINDS
from scheduling.resources import MIB

DECODE = "failed to decode request body"
MISSING_WEIGHT = "missing weight for host"
UNKNOWN_WEIGHT = "weight assigned to unknown host"
OPTIONS = "invalid options"
LONGEST_PROBLEM = 255
MAX_FLAVOR_MIB = 1 << 31
MAX_VCPUS = 1 << 20
MAX_INSTANCES = 1 << 10
DATA = "nova_object.data"
_KIND_OF_WORD: Mapping[str, str] = {
    **{kind: kind for kind in RESERVATION_KINDS},
    "CommittedResourceReservation": KIND_COMMITTED,
    "FailoverReservation": KIND_FAILOVER,
    "InFlightReservation": KIND_IN_FLIGHT,
}
_NULL = msgspec.Raw(b"null")


class _Body(msgspec.Struct, gc=False):
    """A call as Nova sends it, each field as its text."""

    hosts: msgspec.Raw
    weights: msgspec.Raw
    spec: msgspec.Raw = _NULL
    context: msgspec.Raw = _NULL
    pipeline: msgspec.Raw = _NULL
    options: msgspec.Raw = _NULL
    explain_hosts: msgspec.Raw = _NULL


_BODY = msgspec.json.Decoder(_Body)
HOSTS_IN_DETAIL = "explain_hosts"
_SMALL_FIELDS = ("spec", "context", "pipeline", "options", HOSTS_IN_DETAIL)


_Hints = Members[Name, Any]  # Any: what a hint is depends on its name


class _Flavor(Body):
    name: Name = ""
    memory_mb: Annotated[int, whole(0, MAX_FLAVOR_MIB)] = 0
    vcpus: Annotated[int, whole(0, MAX_VCPUS)] = 0
    extra_specs: Members[Name, Text] = {}


class _FlavorObject(Body):
    data: _Flavor = Field(_Flavor(), alias=DATA)


class _Properties(Body):
    data: _Hints | None = Field(None, alias=DATA)


class _Image(Body):
    properties: _Properties = _Properties()


class _ImageObject(Body):
    data: _Image = Field(_Image(), alias=DATA)


class _Rules(Body):
    max_server_per_host: object = None


class _Group(Body):
    policy: Name = ""
    hosts: Elements[Name] = ()
    members: Elements[Name] = ()
    rules: _Rules = Field(_Rules(), alias="_rules")


class _GroupObject(Body):
    data: _Group = Field(_Group(), alias=DATA)


class _Destination(Body):
    host: Name = ""
    aggregates: Elements[Text] = ()


class _DestinationObject(Body):
    data: _Destination = Field(_Destination(), alias=DATA)


class _Spec(Body):
    """What is asked for; lists that are missing are not as good as empty ones."""

    instance_uuid: Id = ""
    project_id: Id = ""
    availability_zone: Name = ""
    num_instances: Annotated[int, whole(0, MAX_INSTANCES)] = 0
    flavor: _FlavorObject = _FlavorObject()
    image: _ImageObject | None = None
    scheduler_hints: _Hints | None = None
    ignore_hosts: Elements[Name] | None = None
    force_hosts: Elements[Name] | None = None
    instance_group: _GroupObject | None = None
    requested_destination: _DestinationObject | None = None


class _SpecObject(Body):
    data: _Spec = Field(_Spec(), alias=DATA)


class _Context(Body):
    request_id: Text = ""
    global_request_id: Text = ""


class _Options(Body):
    read_only: bool = False
    assume_empty_hosts: bool = False
    lock_reservations: bool = False
    ignored_reservation_types: Elements[Name] = ()
    max_candidates: Signed = 0
    skip_history: bool = False
    skip_inflight: bool = False
    skip_committed_resource_tracking: bool = False


class _Call(Body):
    """What a body says beside its hosts."""

    spec: _SpecObject = _SpecObject()
    context: _Context = _Context()
    pipeline: Name = ""
    options: _Options = _Options()
    explain_hosts: object = None


class _Host(BaseModel, strict=True):
    host: str | None = None


class _Listed(Body):
    """Hosts and weights not written as Nova writes them: thousands, so no Python for each."""

    hosts: Elements[_Host | None] = ()
    weights: Members[str, float | None] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class NovaCall:
    """One call of the external scheduler.

    Attributes:
        request: What is asked, with the caller's hosts and weights.
        pipeline_name: The pipeline that was named, else the one that follows from the flavor.
        options: Call-time options.
        caller_request_id: Nova's own request id; empty when not given.
        caller_global_id: Id of the whole operation as Nova knows it; empty when not given.
        hosts_in_detail: List of hosts to explain in detail, not looked at yet; Nova sends none.
    """

    request: PlacementRequest
    pipeline_name: str
    options: CallOptions
    caller_request_id: str
    caller_global_id: str
    hosts_in_detail: object


def parse_nova_call(body: bytes) -> NovaCall:
    """Return the call that a body makes; its thousands of small objects form no cycles.

    Checked in this order: the JSON and its shape, weights, pipeline, options.

    Raises:
        InvalidCall: the body is not a call; the text is that of spec scheduling, 2.4.
    """
    with paused_collector():
        return _parsed(body)


def _parsed(body: bytes) -> NovaCall:
    try:
        call, hosts, weights = _decoded(body)
    except InvalidInput as error:
        raise InvalidCall(DECODE, error.message) from None
    if not isinstance(weights, HostWeights):
        _check_weights(hosts, weights)
    return NovaCall(
        request=_request(call.spec.data, hosts, weights),
        pipeline_name=call.pipeline or _inferred(call.spec.data.flavor.data.extra_specs),
        options=_checked_options(call.options),
        caller_request_id=call.context.request_id,
        caller_global_id=call.context.global_request_id,
        hosts_in_detail=call.explain_hosts,
    )


def _request(spec: _Spec, hosts: Sequence[str], weights: Mapping[str, float]) -> PlacementRequest:
    flavor, hints, image = spec.flavor.data, spec.scheduler_hints, spec.image
    return PlacementRequest(
        request_key=spec.instance_uuid,
        memory_bytes=flavor.memory_mb * MIB,
        vcpus=flavor.vcpus,
        zone=spec.availability_zone,
        project_id=spec.project_id,
        ignore_hosts=None if spec.ignore_hosts is None else frozenset(spec.ignore_hosts),
        force_hosts=None if spec.force_hosts is None else frozenset(spec.force_hosts),
        intent=intent_from_hints(hints),
        num_instances=spec.num_instances,
        flavor_name=flavor.name,
        extra_specs=flavor.extra_specs,
        image_properties=None if image is None else image.data.properties.data,
        domain_name=hint_text(hints, DOMAIN_HINT),
        source_host=hint_text(hints, SOURCE_HOST_HINT) or "",
        resource_group=hint_text(hints, RESOURCE_GROUP_HINT) or "",
        instance_group=_instance_group(spec.instance_group),
        requested_destination=_destination(spec.requested_destination),
        hosts=hosts,
        weights=weights,
    )


def _inferred(extra_specs: Mapping[str, str]) -> str:
    try:
        return inferred_pipeline(extra_specs)
    except PipelineNotInferredError as error:
        raise InvalidCall(
            f"failed to determine {error.subject}", shortened(error.problem, LONGEST_PROBLEM)
        ) from None


def _decoded(body: bytes) -> tuple[_Call, Sequence[str], Mapping[str, float]]:
    """Return what a body says, its hosts and their weights.

    Raises:
        InvalidInput: not JSON, or not of the shape.
    """
    try:
        call = _texts(body)
        top = {name: orjson.loads(memoryview(getattr(call, name))) for name in _SMALL_FIELDS}
        hosts, weights = read_host_list(bytes(call.hosts), bytes(call.weights))
    except (msgspec.MsgspecError, ValueError, RecursionError):
        top = parsed(body)
        listed = checked(_Listed.model_validate, top)
        hosts = tuple((one and one.host) or "" for one in listed.hosts)
        weights = {host: weight or 0.0 for host, weight in listed.weights.items()}
    return checked(_Call.model_validate, top), hosts, weights


def _texts(body: bytes) -> _Body:
    if not body.isascii():
        body.decode()  # the typed decoder does not look into texts that nobody asked for
    return _BODY.decode(body)


def _check_weights(hosts: Sequence[str], weights: Mapping[str, float]) -> None:
    if hosts == tuple(weights):  # as Nova sends them
        return
    known = frozenset(hosts)
    if known == weights.keys():
        return
    unweighted = next((host for host in hosts if host not in weights), None)
    if unweighted is not None:
        raise InvalidCall(MISSING_WEIGHT, shortened(unweighted))
    unknown = next(host for host in weights if host not in known)
    raise InvalidCall(UNKNOWN_WEIGHT, shortened(unknown))


def _instance_group(given: _GroupObject | None) -> InstanceGroup | None:
    if given is None:
        return None
    group = given.data
    return InstanceGroup(
        policy=group.policy,
        hosts=frozenset(group.hosts),
        members=frozenset(group.members),
        max_per_host=max_per_host_from_rule(group.rules.max_server_per_host),
    )


def _destination(given: _DestinationObject | None) -> RequestedDestination | None:
    return None if given is None else RequestedDestination(**vars(given.data))


def _checked_options(given: _Options) -> CallOptions:
    kinds = frozenset(given.ignored_reservation_types)
    options = CallOptions(**{**vars(given), "ignored_reservation_types": kinds})
    problem = options.problem()
    if problem:
        raise InvalidCall(OPTIONS, problem)
    unknown = sorted(kinds - _KIND_OF_WORD.keys())
    if unknown:
        raise InvalidCall(OPTIONS, f"unknown reservation type {shortened(unknown[0])!r}")
    known = frozenset(_KIND_OF_WORD[word] for word in kinds)
    return replace(options, ignored_reservation_types=known)
