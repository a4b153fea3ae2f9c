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
from operator import itemgetter

import msgspec
import orjson

from capacity.api.host_lists import read_host_list
from capacity.nova.nova_call import PipelineNotInferredError, inferred_pipeline
from core.api import InvalidCall
from journal.collector import paused_collector
from journal.errors import InvalidInput
from journal.json_node import JSONNode, parse_json, shortened
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
MAX_ID_LENGTH = 64
MAX_NAME_LENGTH = 255
MAX_TEXT_LENGTH = 4096
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
_HOST = itemgetter("host")
_NUMBER_TYPES = frozenset({int, float, type(None)})
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
    hosts_in_detail: JSONNode


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
        top, listed = _decoded(body)
        spec = top.member("spec").member(DATA)
        context = top.member("context")
        extra_specs = _extra_specs(spec.member("flavor").member(DATA).member("extra_specs"))
        hosts, weights = listed or (
            _host_names(top.member("hosts")),
            _weights(top.member("weights")),
        )
        request = _request(spec, extra_specs, hosts, weights)
        pipeline_name = top.member("pipeline").text(max_length=MAX_NAME_LENGTH)
        options = _options(top.member("options"))
        ids = [
            context.member(name).text(max_length=MAX_TEXT_LENGTH)
            for name in ("request_id", "global_request_id")
        ]
    except InvalidInput as error:
        raise InvalidCall(DECODE, error.message) from None
    if not isinstance(weights, HostWeights):
        _check_weights(hosts, weights)
    if not pipeline_name:
        pipeline_name = _inferred(extra_specs)
    return NovaCall(
        request=request,
        pipeline_name=pipeline_name,
        options=_checked_options(options),
        caller_request_id=ids[0],
        caller_global_id=ids[1],
        hosts_in_detail=top.member(HOSTS_IN_DETAIL),
    )


def _request(
    spec: JSONNode,
    extra_specs: Mapping[str, str],
    hosts: Sequence[str],
    weights: Mapping[str, float],
) -> PlacementRequest:
    flavor = spec.member("flavor").member(DATA)
    hints = _mapping(spec.member("scheduler_hints"))
    return PlacementRequest(
        request_key=spec.member("instance_uuid").text(max_length=MAX_ID_LENGTH),
        memory_bytes=_count(flavor.member("memory_mb"), MAX_FLAVOR_MIB) * MIB,
        vcpus=_count(flavor.member("vcpus"), MAX_VCPUS),
        zone=spec.member("availability_zone").text(max_length=MAX_NAME_LENGTH),
        project_id=spec.member("project_id").text(max_length=MAX_ID_LENGTH),
        ignore_hosts=_names(spec.member("ignore_hosts")),
        force_hosts=_names(spec.member("force_hosts")),
        intent=intent_from_hints(hints),
        num_instances=_count(spec.member("num_instances"), MAX_INSTANCES),
        flavor_name=flavor.member("name").text(max_length=MAX_NAME_LENGTH),
        extra_specs=extra_specs,
        image_properties=_image_properties(spec.member("image")),
        domain_name=hint_text(hints, DOMAIN_HINT),
        source_host=hint_text(hints, SOURCE_HOST_HINT) or "",
        resource_group=hint_text(hints, RESOURCE_GROUP_HINT) or "",
        instance_group=_instance_group(spec.member("instance_group")),
        requested_destination=_destination(spec.member("requested_destination")),
        hosts=hosts,
        weights=weights,
    )


def _inferred(extra_specs: Mapping[str, str]) -> str:
    try:
        return inferred_pipeline(extra_specs)
    except PipelineNotInferredError as error:
        raise InvalidCall(
            f"failed to determine {error.subject}", shortened(error.problem, MAX_NAME_LENGTH)
        ) from None


def _decoded(body: bytes) -> tuple[JSONNode, tuple[Sequence[str], Mapping[str, float]] | None]:
    """Return the body's fields, and its hosts and weights if they have the types Nova sends.

    Raises:
        InvalidInput: not JSON.
    """
    try:
        call = _texts(body)
        top = {name: orjson.loads(memoryview(getattr(call, name))) for name in _SMALL_FIELDS}
        listed = read_host_list(bytes(call.hosts), bytes(call.weights))
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return parse_json(body), None
    return JSONNode("", top), listed


def _texts(body: bytes) -> _Body:
    if not body.isascii():
        body.decode()  # the typed decoder does not look into texts that nobody asked for
    return _BODY.decode(body)


def _host_names(node: JSONNode) -> tuple[str, ...]:
    """Return the compute host names, in one pass when every entry is as Nova sends it."""
    listed = node.content
    if isinstance(listed, list):
        try:
            names = tuple(map(_HOST, listed))
        except (KeyError, TypeError, IndexError):
            names = ()
        if len(names) == len(listed) and set(map(type, names)) <= {str}:
            return names
    return tuple(entry.member("host").text(max_length=MAX_NAME_LENGTH) for entry in node.items())


def _weights(node: JSONNode) -> Mapping[str, float]:
    weights = node.content
    if weights is None:
        return {}
    if not isinstance(weights, dict):
        raise node.wrong("must be an object")
    kinds = set(map(type, weights.values()))
    if not kinds <= _NUMBER_TYPES:
        raise node.wrong("must hold numbers only")
    if kinds <= {float}:
        return weights
    return {host: float(weight or 0.0) for host, weight in weights.items()}


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


def _extra_specs(node: JSONNode) -> Mapping[str, str]:
    members = node.members(max_key_length=MAX_NAME_LENGTH)
    return {key: entry.text(max_length=MAX_TEXT_LENGTH) for key, entry in members}


def _mapping(node: JSONNode) -> Mapping[str, object] | None:
    if not node.is_set:
        return None
    return {key: entry.content for key, entry in node.members(max_key_length=MAX_NAME_LENGTH)}


def _image_properties(image: JSONNode) -> Mapping[str, object] | None:
    if not image.is_set:
        return None
    return _mapping(image.member(DATA).member("properties").member(DATA))


def _names(node: JSONNode) -> frozenset[str] | None:
    if not node.is_set:
        return None
    return frozenset(node.texts(max_length=MAX_NAME_LENGTH))


def _instance_group(node: JSONNode) -> InstanceGroup | None:
    if not node.is_set:
        return None
    group = node.member(DATA)
    return InstanceGroup(
        policy=group.member("policy").text(max_length=MAX_NAME_LENGTH),
        hosts=_names(group.member("hosts")) or frozenset(),
        members=_names(group.member("members")) or frozenset(),
        max_per_host=max_per_host_from_rule(
            group.member("_rules").member("max_server_per_host").content
        ),
    )


def _destination(node: JSONNode) -> RequestedDestination | None:
    if not node.is_set:
        return None
    wanted = node.member(DATA)
    return RequestedDestination(
        host=wanted.member("host").text(max_length=MAX_NAME_LENGTH),
        aggregates=wanted.member("aggregates").texts(max_length=MAX_TEXT_LENGTH),
    )


def _count(node: JSONNode, highest: int) -> int:
    number = node.unsigned()
    if number > highest:
        raise node.wrong(f"must not exceed {highest}")
    return number


def _options(node: JSONNode) -> CallOptions:
    kinds = node.member("ignored_reservation_types").texts(max_length=MAX_NAME_LENGTH)
    return CallOptions(
        read_only=node.member("read_only").flag(),
        assume_empty_hosts=node.member("assume_empty_hosts").flag(),
        lock_reservations=node.member("lock_reservations").flag(),
        ignored_reservation_types=frozenset(kinds),
        max_candidates=node.member("max_candidates").signed(),
        skip_history=node.member("skip_history").flag(),
        skip_inflight=node.member("skip_inflight").flag(),
        skip_committed_resource_tracking=node.member("skip_committed_resource_tracking").flag(),
    )


def _checked_options(options: CallOptions) -> CallOptions:
    problem = options.problem()
    if problem:
        raise InvalidCall(OPTIONS, problem)
    unknown = sorted(options.ignored_reservation_types - _KIND_OF_WORD.keys())
    if unknown:
        raise InvalidCall(OPTIONS, f"unknown reservation type {shortened(unknown[0])!r}")
    kinds = frozenset(_KIND_OF_WORD[word] for word in options.ignored_reservation_types)
    return replace(options, ignored_reservation_types=kinds)
