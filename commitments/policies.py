"""Rules of the LIQUID endpoints (spec liquid, 3)."""

from __future__ import annotations

from journal.auth import RULE_READ_ONLY, RULE_READ_WRITE
from journal.policy import PolicyRule

GET_INFO = "liquid:get_info"
GET_CAPACITY = "liquid:get_capacity"
GET_USAGE = "liquid:get_usage"
SET_QUOTA = "liquid:set_quota"
CHANGE_COMMITMENTS = "liquid:change_commitments"
WHAT_IF = "commitments:what_if"
EXPORT_FOCUS = "commitments:export_focus"

RULES = (
    PolicyRule(
        name=GET_INFO,
        check=f"rule:{RULE_READ_ONLY}",
        description="GET /commitments/v1/info.",
    ),
    PolicyRule(
        name=GET_CAPACITY,
        check=f"rule:{RULE_READ_ONLY}",
        description="POST /commitments/v1/report-capacity.",
    ),
    PolicyRule(
        name=GET_USAGE,
        check=f"rule:{RULE_READ_ONLY}",
        description="POST /commitments/v1/projects/{project_id}/report-usage; target project_id.",
    ),
    PolicyRule(
        name=SET_QUOTA,
        check=f"rule:{RULE_READ_WRITE}",
        description="PUT /commitments/v1/projects/{project_id}/quota; target project_id.",
    ),
    PolicyRule(
        name=CHANGE_COMMITMENTS,
        check=f"rule:{RULE_READ_WRITE}",
        description="POST /commitments/v1/change-commitments.",
    ),
    PolicyRule(
        name=WHAT_IF,
        check=f"rule:{RULE_READ_ONLY}",
        description="POST /api/v1/commitments/what-if; writes nothing.",
    ),
    PolicyRule(
        name=EXPORT_FOCUS,
        check=f"rule:{RULE_READ_ONLY}",
        description="GET /api/v1/commitments/focus; use and costs of every project.",
    ),
)
