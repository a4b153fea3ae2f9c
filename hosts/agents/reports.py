"""What agents report of their hosts (spec hosts, A.10, D.6)."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import jsonschema_rs
import orjson
from django.utils.dateparse import parse_datetime

from core.prepared import fetch_prepared
from hosts.agents.cells import STORE_CELLS, cell_columns
from hosts.agents.errors import AgentRefused
from hosts.agents.models import HostAgent
from hosts.agents.resources import STORE_RESOURCES, resource_columns
from journal.clock import database_now

AHEAD = timedelta(minutes=5)
RESOURCES = ("cpu", "memory", "disk", "network", "disk_io")
_AMOUNT = {"type": "integer", "minimum": 0, "maximum": 2**63 - 1}
_TEXT = {"type": "string", "maxLength": 1024}


def _object(required: dict[str, Any], optional: dict[str, Any] | None = None) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": required | (optional or {}),
        "required": list(required),
        "additionalProperties": False,
    }


def _list(items: dict[str, Any], most: int) -> dict[str, Any]:
    return {"type": "array", "items": items, "maxItems": most}


def _amounts(*names: str) -> dict[str, Any]:
    return dict.fromkeys(names, _AMOUNT)


def _resource(kind: str) -> dict[str, Any]:
    amounts = ("capacity", "effective_limit", "allocated", "available", "pending", "over_by")
    return _object(
        {
            "type": {"const": kind},
            **_amounts(*amounts),
            "oversub_ratio": {"type": "number", "exclusiveMinimum": 0, "maximum": 1_000_000},
            "source": {"enum": ["detected", "configured", "unknown", "reported"]},
            "stale": {"type": "boolean"},
        },
        {"error": _TEXT},
    )


_POOL = _amounts("page_size_bytes", "total", "free", "bytes")
_PROFILE = _object({"name": _TEXT, **_amounts("framebuffer_mb", "available")})
_DEVICE = _object(
    {
        **dict.fromkeys(("address", "vendor", "device"), _TEXT),
        "iommu_group": _AMOUNT,
        "available": {"type": "boolean"},
    }
)
_RATES = ("network_download_bps", "network_upload_bps", "disk_io_bps")
SCHEMA = _object(
    {
        **{kind: _resource(kind) for kind in RESOURCES},
        "allocations": _list(
            _object(
                {
                    **dict.fromkeys(("instance_id", "instance_name"), _TEXT),
                    **_amounts("cpu", "memory_bytes", "disk_bytes", *_RATES),
                }
            ),
            10_000,
        ),
        "generated_at": _TEXT,
        "boot_id": {"type": ["string", "null"], "maxLength": 64},
        "numa": _list(
            _object(
                {
                    **_amounts("cell", "memory_bytes"),
                    **dict.fromkeys(("cpus", "pinned_cpus"), _list(_AMOUNT, 8192)),
                    "hugepages": _list(_object(_POOL | {"available": _AMOUNT}), 16),
                }
            ),
            1024,
        ),
        "hugepages": _list(_object(_POOL), 16),
    },
    {
        "health": _list(_object({"check": _TEXT, "ok": {"type": "boolean"}, "message": _TEXT}), 32),
        "disk_breakdown": _object(
            _amounts("images_bytes", "oci_cache_bytes", "volumes_bytes", "overlays_bytes")
        ),
        "image_storage": _object(_amounts("current_bytes", "max_bytes")),
        "gpu": _object(
            {
                "mode": {"enum": ["vgpu", "passthrough"]},
                **_amounts("total_slots", "used_slots", "allocatable_slots", "quarantined_slots"),
            },
            {
                "profiles": _list(_PROFILE, 1024),
                "devices": _list(_DEVICE, 1024),
                "placement_disabled_reason": _TEXT,
            },
        ),
    },
)
_VALIDATOR = jsonschema_rs.validator_for(SCHEMA)
_KEEP = f"""
WITH kept AS (
    UPDATE hosts_hostagent
       SET report = %(report)s::jsonb, generated_at = %(generated_at)s::timestamptz,
           reported_at = %(reported_at)s::timestamptz,
           health_problem = %(health_problem)s::text
     WHERE id = %(agent)s::bigint
       AND (generated_at IS NULL OR generated_at <= %(generated_at)s::timestamptz)
    RETURNING host_name
), {STORE_CELLS}
{STORE_RESOURCES}
"""  # noqa: S608 - our own text


def store_report(agent: HostAgent, report: object) -> None:
    """Keep an agent's report; one that is older than what is kept changes nothing.

    Raises:
        AgentRefused: It is no report; the first field that is wrong is named.
    """
    generated_at = _checked(report)
    now = database_now()
    if generated_at > now + AHEAD:
        raise _wrong("generated_at", f"it is {generated_at - now} ahead of our time")
    assert isinstance(report, dict)  # noqa: S101 - by the schema
    facts = {
        "agent": agent.pk,
        "report": orjson.dumps(report).decode(),
        "generated_at": generated_at,
        "reported_at": now,
        "health_problem": _problem(report),
    }
    fetch_prepared(_KEEP, facts | cell_columns(agent, report) | resource_columns(agent, report))


def _problem(report: object) -> str:
    """Return the checks of a host that fail, with what they say."""
    assert isinstance(report, dict)  # noqa: S101 - by the schema
    failed = [one for one in report.get("health", ()) if not one["ok"]]
    return "; ".join(f"{one['check']}: {one['message']}" for one in failed)


def _checked(report: object) -> datetime:
    """Return when a report was made.

    Raises:
        AgentRefused: It is no report.
    """
    error = next(iter(_VALIDATOR.iter_errors(report)), None)
    if error is not None:
        raise _wrong("/".join(str(part) for part in error.instance_path), error.message[:200])
    assert isinstance(report, dict)  # noqa: S101 - by the schema
    try:
        generated_at = parse_datetime(report["generated_at"])
    except ValueError:
        generated_at = None
    if generated_at is None or generated_at.tzinfo is None:
        raise _wrong("generated_at", "it is no time with an offset")
    return generated_at


def _wrong(field: str, reason: str) -> AgentRefused:
    return AgentRefused(f"{field or 'the report'}: {reason}", code="invalid_report", field=field)
