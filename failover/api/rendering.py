"""Answers of the failover API as JSON documents (spec failover, 17.2; issue 6)."""

from __future__ import annotations

from typing import Any

from failover.domain.drill import DrillResult
from failover.domain.drill_state import DrillState
from failover.drill_models import FailureDrill, ShadowPlan
from failover.selectors.drain import DrainAnswer
from failover.services.rebalancing import Rebalancing
from failover.services.replanning import Replan

Document = dict[str, Any]  # Any: JSON


def simulation_document(result: DrillResult) -> Document:
    """Return a simulation as the API answers it."""
    return {
        "failed_hosts": len(result.failed_hosts),
        "affected_vms": result.affected_vms,
        "assignments": [
            {
                "vm": row.vm,
                "from": row.from_host,
                "reservation": row.slot,
                "to": row.to_host,
                "private": row.is_private,
            }
            for row in result.assignments
        ],
        "unprotected": [
            {
                "vm": row.vm,
                "required": row.required,
                "slots": row.slots,
                "reason": row.reason.value,
            }
            for row in result.unprotected
        ],
        "conflicts": [{"reservation": row.slot, "vms": list(row.vms)} for row in result.conflicts],
        "hosts_after": [
            {
                "host": row.host,
                "memory_used": row.used.memory_bytes,
                "memory_capacity": row.effective.memory_bytes,
            }
            for row in result.hosts_after
        ],
    }


def explanation_document(state: DrillState, result: DrillResult) -> list[Document]:
    """Return for each unprotected VM what is wrong with each of its slots."""
    failed = set(result.failed_hosts)
    taken = {row.slot: row.vm for row in result.assignments}
    return [
        {
            "vm": row.vm,
            "slots": [
                {
                    "reservation": name,
                    "host": state.slots[name].host,
                    "host_failed": state.slots[name].host in failed,
                    "usable": state.slots[name].is_usable,
                    "fits": state.vms[row.vm].size.fits_into(state.slots[name].size),
                    "taken_by": taken.get(name),
                }
                for name in state.slots_of.get(row.vm, ())
            ],
        }
        for row in result.unprotected
    ]


def drain_document(answer: DrainAnswer) -> Document:
    """Return a drain check as API and command answer it."""
    report, window = answer.report, answer.window
    return {
        "hosts": list(report.hosts),
        "safe": report.is_safe,
        "blockers": [blocker.value for blocker in report.blockers],
        "stranded_commitments": [
            {
                "commitment": uuid,
                "slots": len(slots),
                "memory_bytes": sum(slot.memory_bytes for slot in slots),
            }
            for uuid, slots in report.stranded_commitments.items()
        ],
        "stuck": [
            {
                "kind": row.kind.value,
                "key": row.key,
                "host": row.from_host,
                "memory_bytes": row.memory_bytes,
                "reason": row.reason,
            }
            for row in report.stuck
        ],
        "weakened_vms": [
            {
                "vm": row.vm,
                "required": row.required,
                "slots_before": row.before,
                "slots_after": row.after,
            }
            for row in report.weakened
        ],
        "moves": [
            {
                "kind": move.kind.value,
                "key": move.key,
                "from": move.from_host,
                "to": move.to_host,
            }
            for move in report.moves
        ],
        "next_safe_window": window
        and {
            "starts_at": window.starts_at.isoformat(),
            "ends_at": window.ends_at.isoformat() if window.ends_at else None,
        },
    }


def drill_document(row: FailureDrill) -> Document:
    """Return the report of a drill."""
    return {
        "zone": row.zone,
        "scope": row.scope,
        "started_at": row.started_at.isoformat(),
        "finished_at": row.finished_at.isoformat(),
        "failures": row.cases,
        "simulated": row.simulated,
        "vms": row.vms,
        "unprotected_vms": row.unprotected_vms,
        "worst": [
            {
                "name": case["name"],
                "affected_vms": case["affected_vms"],
                "unprotected_vms": case["unprotected_vms"],
                "reasons": case["reasons"],
                "vms": case["vms"],
            }
            for case in row.worst
        ],
    }


def shadow_plan_document(row: ShadowPlan) -> Document:
    """Return a shadow plan and how far it is carried out."""
    return {
        "zone": row.zone,
        "state": str(row.state),
        "computed_at": row.computed_at.isoformat(),
        "reserved_memory_bytes": row.reserved_memory_bytes,
        "shadow_memory_bytes": row.shadow_memory_bytes,
        "lower_bound_bytes": row.lower_bound_bytes,
        "vm_memory_bytes": row.vm_memory_bytes,
        "steps_done": row.steps_done,
    }


def rebalancing_document(would: Rebalancing) -> Document:
    """Return what rebalancing would do."""
    return {
        "steps": would.steps,
        "exchange": would.is_exchange,
        "out_of_reach": would.blocked,
        "reserved_memory_bytes": would.reserved_before,
        "reserved_after_bytes": would.reserved_after,
    }


def replan_document(done: Replan) -> Document:
    """Return what planning one VM did, or would do."""
    return {
        "vm": done.vm_uuid,
        "zone": done.zone,
        "outcome": str(done.outcome),
        "left": done.removed,
        "joined": done.joined,
        "created": done.created,
        "reason": done.reason,
    }
