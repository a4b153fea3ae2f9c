"""The gateway's own access rules (spec placement, 7.5)."""

from __future__ import annotations

from typing import Any

import pytest

from placement.domain.access_rules import ProjectScope, may_pass, parse_rules, rule_for

OWN = {"projectScope": {"from": "query", "param": "project_id"}}
DEFAULTS: list[dict[str, Any]] = [
    {"pattern": "GET /", "roles": []},
    {
        "pattern": "GET /usages",
        "roles": [
            "cloud_compute_admin",
            "cloud_compute_viewer",
            {"name": "compute_admin", **OWN},
            {"name": "compute_viewer", **OWN},
        ],
    },
    {"pattern": "GET /*", "roles": ["cloud_compute_admin", "cloud_compute_viewer"]},
    {"pattern": "* /*", "roles": ["cloud_compute_admin"]},
]
ONLY_X: list[dict[str, Any]] = [{"pattern": "GET /x/*", "roles": ["r"]}]


def allowed(rules: list[dict[str, Any]], request: str, role: str, project: str = "p") -> bool:
    method, path = request.split(" ")
    path, _, named = path.partition("?project_id=")
    rule = rule_for(parse_rules(rules), method, path)
    if rule is None:
        return False
    return not rule.roles or may_pass(rule, [role] if role else [], project, lambda _: named)


@pytest.mark.parametrize(
    ("rules", "request_line", "role", "verdict"),
    [
        (DEFAULTS, "GET /", "", True),
        (DEFAULTS, "GET /usages?project_id=p", "compute_viewer", True),
        (DEFAULTS, "GET /usages?project_id=q", "compute_viewer", False),
        (DEFAULTS, "GET /usages", "compute_viewer", False),
        (DEFAULTS, "GET /usages?project_id=q", "cloud_compute_viewer", True),
        (DEFAULTS, "PUT /allocations/c", "cloud_compute_viewer", False),
        (DEFAULTS, "PUT /allocations/c", "CLOUD_COMPUTE_ADMIN", True),
        (DEFAULTS, "GET /traits", "cloud_compute_viewer", True),
        (DEFAULTS, "GET /traits", "compute_viewer", False),
        (ONLY_X, "GET /x", "r", True),
        (ONLY_X, "GET /x/1", "r", True),
        (ONLY_X, "GET /xy", "r", False),
        (ONLY_X, "PUT /x", "r", False),
    ],
)
def test_who_passes(
    rules: list[dict[str, Any]], request_line: str, role: str, verdict: bool
) -> None:
    assert allowed(rules, request_line, role) is verdict


def test_a_token_without_a_project_fits_no_project() -> None:
    (rule,) = parse_rules([{"pattern": "GET /u", "roles": [{"name": "r", **OWN}]}])
    assert rule.roles[0].scope == ProjectScope("query", "project_id")
    assert not may_pass(rule, ["r"], "", lambda _: "")


@pytest.mark.parametrize(
    "rule",
    [
        {"pattern": "GET"},
        {"pattern": "GET  /x"},
        {"pattern": "/x"},
        {"pattern": "FETCH /x"},
        {"pattern": "GET /x/*/y"},
        {"pattern": "GET x"},
        {"pattern": "GET /x", "roles": "admin"},
        {"pattern": "GET /x", "roles": [{}]},
        {"pattern": "GET /x", "roles": [1]},
        {"pattern": "GET /x", "role": []},
        {"pattern": "GET /x", "roles": [{"name": "r", "projectScope": {"from": "header"}}]},
        {"pattern": "GET /x", "roles": [{"name": "r", "projectScope": {"from": "body"}}]},
    ],
)
def test_what_cannot_be_understood(rule: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"\A[^\n]+\Z"):
        parse_rules([rule])
