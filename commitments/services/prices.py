"""Writing what flavor groups cost (docs/focus.md).

Joins the caller's transaction, because the admin's form view opens one of its own.
"""

from __future__ import annotations

from typing import Any, Final

from django.forms.models import model_to_dict

from commitments.usage_models import GroupPrice
from core.audited_rows import AuditedRows
from journal.actors import Actor

TOPIC: Final = "group_price"


def save_price(price: GroupPrice, *, actor: Actor, request_id: str) -> None:
    """Create or change a price, with an audit entry."""
    PRICES.save(price, actor=actor, request_id=request_id)


def remove_price(price: GroupPrice, *, actor: Actor, request_id: str) -> None:
    """Remove a price, with an audit entry; what was exported before does not change."""
    PRICES.remove(price.pk, actor=actor, request_id=request_id)


def _columns(price: GroupPrice) -> dict[str, Any]:
    return {
        **model_to_dict(price, exclude=("id", "valid_from", "hourly_price")),
        "valid_from": price.valid_from.isoformat(),
        "hourly_price": f"{price.hourly_price.normalize():f}",
    }


PRICES: Final = AuditedRows(
    model=GroupPrice, object_type=TOPIC, fields=_columns, name=str, topic=TOPIC
)
