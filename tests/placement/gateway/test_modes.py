"""Who answers which group (spec placement, 8.1)."""

from __future__ import annotations

import pytest

from config.environment import ConfigurationError, load_environment
from placement.api.urls import ROUTES
from placement.gateway.headers import answer_headers, request_headers
from placement.gateway.modes import STATEFUL, Group, Mode, group_of, parse_modes

URL = {"HEADROOM_GATEWAY__UPSTREAM_URL": "http://placement:8778"}
SIX = [str(group) for group in STATEFUL]

#: Spec placement, 1.2.
GROUPS = {
    "": "root",
    "resource_providers": "resourceProviders",
    "resource_providers/{uuid}": "resourceProviders",
    "resource_providers/{uuid}/inventories": "inventories",
    "resource_providers/{uuid}/inventories/{resource_class}": "inventories",
    "resource_providers/{uuid}/aggregates": "aggregates",
    "resource_providers/{uuid}/traits": "resourceProviderTraits",
    "resource_providers/{uuid}/usages": "usages",
    "resource_providers/{uuid}/allocations": "allocations",
    "traits": "traits",
    "traits/{name}": "traits",
    "resource_classes": "resourceClasses",
    "resource_classes/{name}": "resourceClasses",
    "usages": "usages",
    "allocations": "allocations",
    "allocations/{consumer_uuid}": "allocations",
    "reshaper": "reshaper",
    "allocation_candidates": "allocationCandidates",
}


def test_every_route_is_of_a_group() -> None:
    assert {template: group_of(template) for template, _ in ROUTES} == GROUPS


@pytest.mark.parametrize(("has_upstream", "mode"), [(False, "local"), (True, "passthrough")])
def test_what_is_not_said(has_upstream: bool, mode: str) -> None:
    assert set(parse_modes({}, has_upstream=has_upstream).values()) == {mode}


@pytest.mark.parametrize(
    ("word", "mode"),
    [
        ("", Mode.PASSTHROUGH),
        ("passthrough", Mode.PASSTHROUGH),
        ("local", Mode.LOCAL),
        ("crd", Mode.LOCAL),
    ],
)
@pytest.mark.parametrize(
    "name", ["root", "traits", "resourceProviderTraits", "resourceClasses", "aggregates"]
)
def test_groups_that_switch_alone(name: str, word: str, mode: Mode) -> None:
    assert parse_modes({name: word}, has_upstream=True)[Group(name)] is mode


def test_the_six_switch_together() -> None:
    parse_modes(dict.fromkeys(SIX, "local"), has_upstream=True)
    for name in SIX:
        with pytest.raises(ValueError, match="switch together"):
            parse_modes({name: "local"}, has_upstream=True)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"HEADROOM_GATEWAY__MODES": '{"root": "passthrough"}'}, "needs an UPSTREAM_URL"),
        ({**URL, "HEADROOM_GATEWAY__MODES": '{"root": "both"}'}, "root: 'both' is none of"),
        ({**URL, "HEADROOM_GATEWAY__MODES": '{"roots": "local"}'}, "'roots' is none of"),
        ({**URL, "HEADROOM_GATEWAY__MODES": '{"usages": "local"}'}, "switch together"),
        ({**URL, "HEADROOM_ALLOCATION_SOURCE": "placement"}, "needs allocations to be local"),
        ({**URL, "HEADROOM_PLACEMENT__HOST_CAPACITY": "true"}, "needs allocations to be local"),
        (
            {**URL, "HEADROOM_GATEWAY__TIMEOUT_SECONDS": "90", "HEADROOM_WEB__STUCK_SECONDS": "80"},
            "gateway.timeout_seconds",
        ),
        ({"HEADROOM_GATEWAY__UPSTREAM_URL": "ftp://x"}, "no address of http or https"),
        ({"HEADROOM_GATEWAY__UPSTREAM_URL": "http://"}, "no address of http or https"),
        ({"HEADROOM_GATEWAY__UPSTREAM_URL": "http://a:b@c"}, "more than scheme, host"),
        ({"HEADROOM_GATEWAY__UPSTREAM_URL": "http://c/?d"}, "more than scheme, host"),
        ({"HEADROOM_GATEWAY__UPSTREAM_URL": "http://c:99999"}, "Port out of range"),
    ],
)
def test_settings_that_stop_the_start(settings: dict[str, str], problem: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load_environment({"HEADROOM_DEBUG": "true", **settings})
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_goes_on_of_a_request() -> None:
    environ = {
        "REQUEST_METHOD": "PUT",
        "CONTENT_TYPE": "application/json",
        "CONTENT_LENGTH": "2",
        "HTTP_HOST": "here",
        "HTTP_X_AUTH_TOKEN": "t",
        "HTTP_OPENSTACK_API_VERSION": "placement 1.5,compute 2",
        "HTTP_X_CORTEX_FEATURE_MODE": "local",
        "HTTP_CONNECTION": "keep-alive, X-Secret",
        "HTTP_X_SECRET": "s",
        "HTTP_TE": "trailers",
        "HTTP_UPGRADE": "h2c",
        "HTTP_EXPECT": "100-continue",
        "HTTP_ACCEPT_ENCODING": "gzip",
    }
    assert sorted(request_headers(environ)) == [
        ("Accept-Encoding", "gzip"),
        ("Content-Length", "2"),
        ("Content-Type", "application/json"),
        ("Openstack-Api-Version", "placement 1.5,compute 2"),
        ("X-Auth-Token", "t"),
    ]


def test_what_comes_back_of_an_answer() -> None:
    received = [
        ("Connection", "close, X-Hop"),
        ("X-Hop", "1"),
        ("Transfer-Encoding", "chunked"),
        ("Keep-Alive", "timeout=5"),
        ("Content-Type", "a/b"),
        ("X-Twice", "1"),
        ("X-Twice", "2"),
    ]
    assert answer_headers(received) == {"Content-Type": "a/b", "X-Twice": "1, 2"}
