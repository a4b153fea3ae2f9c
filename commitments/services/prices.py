"""Writing what flavor groups cost (docs/focus.md).

Joins the caller's transaction, because the admin's form view opens one of its own.
"""

from __future__ import annotations

from typing import Any

from django.db import transaction
from django.forms.models import model_to_dict

from commitments.usage_models import GroupPrice
from journal.actors import Actor
from journal.services import Change, record_changes

TOPIC = "group_price"


def save_price(price: GroupPrice, *, actor: Actor, request_id: str) -> None:
    """Create or change a price, with an audit entry."""
    with transaction.atomic():
        known = GroupPrice.objects.select_for_update(no_key=True).filter(pk=price.pk).first()
        before = _columns(known) if known is not None else None
        if _columns(price) == before:
            return
        price.save()
        change = _change("group_price_saved", str(price), before, _columns(price))
        record_changes([change], actor=actor, request_id=request_id)


def remove_price(price: GroupPrice, *, actor: Actor, request_id: str) -> None:
    """Remove a price, with an audit entry; what was exported before does not change."""
    with transaction.atomic():
        before, name = _columns(price), str(price)
        if GroupPrice.objects.filter(pk=price.pk).delete()[0]:
            change = _change("group_price_removed", name, before, None)
            record_changes([change], actor=actor, request_id=request_id)


def _columns(price: GroupPrice) -> dict[str, Any]:
    return {
        **model_to_dict(price, exclude=("id", "valid_from", "hourly_price")),
        "valid_from": price.valid_from.isoformat(),
        "hourly_price": f"{price.hourly_price.normalize():f}",
    }


def _change(
    action: str, name: str, before: dict[str, Any] | None, after: dict[str, Any] | None
) -> Change:
    return Change(
        action=action, object_type=TOPIC, object_id=name, before=before, after=after, topic=TOPIC
    )
