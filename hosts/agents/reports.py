"""What agents report of their hosts (spec hosts, A.10, D.6)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jsonschema_rs
import orjson
from django.db import IntegrityError

from core.jobs import tried
from core.prepared import fetch_prepared
from hosts.agents.bodies import AMOUNT, generated_at, list_of, object_of, valid
from hosts.agents.cells import STORE_CELLS, cell_columns
from hosts.agents.models import HostAgent
from hosts.agents.resources import STORE_RESOURCES, resource_columns
from journal.clock import database_now

RESOURCES = ("cpu", "memory", "disk", "network", "disk_io")
_TEXT = {"type": "string", "maxLength": 1024}


def _amounts(*names: str) -> dict[str, Any]:
    return dict.fromkeys(names, AMOUNT)


def _resource(kind: str) -> dict[str, Any]:
    amounts = ("capacity", "effective_limit", "allocated", "available", "pending", "over_by")
    return object_of(
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
_PROFILE = object_of({"name": _TEXT, **_amounts("framebuffer_mb", "available")})
_DEVICE = object_of(
    {
        **dict.fromkeys(("address", "vendor", "device"), _TEXT),
        "iommu_group": AMOUNT,
        "available": {"type": "boolean"},
    }
)
_RATES = ("network_download_bps", "network_upload_bps", "disk_io_bps")
SCHEMA = object_of(
    {
        **{kind: _resource(kind) for kind in RESOURCES},
        "allocations": list_of(
            object_of(
                {
                    **dict.fromkeys(("instance_id", "instance_name"), _TEXT),
                    **_amounts("cpu", "memory_bytes", "disk_bytes", *_RATES),
                }
            ),
            10_000,
        ),
        "generated_at": _TEXT,
        "boot_id": {"type": ["string", "null"], "maxLength": 64},
        "numa": list_of(
            object_of(
                {
                    **_amounts("cell", "memory_bytes"),
                    **dict.fromkeys(("cpus", "pinned_cpus"), list_of(AMOUNT, 8192)),
                    "hugepages": list_of(object_of(_POOL | {"available": AMOUNT}), 16),
                }
            ),
            1024,
        ),
        "hugepages": list_of(object_of(_POOL), 16),
    },
    {
        "health": list_of(
            object_of({"check": _TEXT, "ok": {"type": "boolean"}, "message": _TEXT}), 32
        ),
        "disk_breakdown": object_of(
            _amounts("images_bytes", "oci_cache_bytes", "volumes_bytes", "overlays_bytes")
        ),
        "image_storage": object_of(_amounts("current_bytes", "max_bytes")),
        "gpu": object_of(
            {
                "mode": {"enum": ["vgpu", "passthrough"]},
                **_amounts("total_slots", "used_slots", "allocatable_slots", "quarantined_slots"),
            },
            {
                "profiles": list_of(_PROFILE, 1024),
                "devices": list_of(_DEVICE, 1024),
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
    document, now = valid(_VALIDATOR, report, "the report"), database_now()
    facts = {
        "agent": agent.pk,
        "report": orjson.dumps(document).decode(),
        "generated_at": generated_at(document, now),
        "reported_at": now,
        "health_problem": _problem(document),
    }
    facts |= cell_columns(agent, document) | resource_columns(agent, document)
    tried(
        lambda: fetch_prepared(_KEEP, facts),
        event="agent_report_again",
        again_after=lambda error: isinstance(error, IntegrityError),  # the host went meanwhile
    )


def _problem(report: Mapping[str, Any]) -> str:
    """Return the checks of a host that fail, with what they say."""
    failed = [one for one in report.get("health", ()) if not one["ok"]]
    return "; ".join(f"{one['check']}: {one['message']}" for one in failed)
