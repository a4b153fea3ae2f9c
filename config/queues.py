"""Which queue a task waits in, so that what is quick never waits behind what takes an hour.

``soon`` is for what has to happen within seconds and ends within two minutes, ``long`` for what may
take many minutes and can wait, ``steady`` for the rest. Workers take some of them or all
(docs/operations.md, "Queues and workers").
"""

from __future__ import annotations

from typing import Final

SOON: Final = "soon"
STEADY: Final = "steady"
LONG: Final = "long"
QUEUES: Final = (SOON, STEADY, LONG)

_TASKS: Final = {
    SOON: (
        "capacity.end_in_flight",
        "commitments.compact_slots",
        "failover.account_coverage",
        "failover.evacuate",
        "failover.reconcile_periodic",
        "failover.replan_due",
        "failover.replan_vm",
        "failover.validate_due",
        "failover.validate_reservation",
        "journal.beat",
    ),
    LONG: (
        "capacity.prune_decisions",
        "commitments.compact_zone",
        "commitments.prune_usage_history",
        "commitments.sync",
        "failover.drill_zones",
        "failover.forget_old",
        "failover.rebalance",
        "failover.rebalance_zone",
        "journal.prune",
        "placement.audit_usage",
        "placement.keep_history",
    ),
}
ROUTES: Final = {name: {"queue": queue} for queue, names in _TASKS.items() for name in names}
