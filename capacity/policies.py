"""Rules of the scheduler's endpoints (spec scheduling, 2, 16.1)."""

from __future__ import annotations

from journal.auth import RULE_READ_ONLY, RULE_SCHEDULE
from journal.policy import PolicyRule

NOVA_EXTERNAL = "scheduler:nova_external"
EXPLAIN = "scheduler:explain"

RULES = (
    PolicyRule(
        name=NOVA_EXTERNAL,
        check=f"rule:{RULE_SCHEDULE}",
        description="POST /scheduler/nova/external: hosts for a VM, with room held on them.",
    ),
    PolicyRule(
        name=EXPLAIN,
        check=f"rule:{RULE_SCHEDULE} or rule:{RULE_READ_ONLY}",
        description="POST /api/v1/scheduling/explain: why hosts fit or not; holds nothing.",
    ),
)
