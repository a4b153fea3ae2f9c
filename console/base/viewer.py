"""Who looks at a page, and what they may see."""

from __future__ import annotations

from django.db import models
from django.http import HttpRequest

from console.theme import may_view_label
from journal.actors import Actor


def request_actor(request: HttpRequest) -> Actor:
    """Return who is signed in, as the audit trail names them."""
    return Actor(name=f"admin:{request.user.get_username()}")


def may_view(request: HttpRequest, model: type[models.Model] | str) -> bool:
    """Return whether who is signed in may see rows of a model.

    Args:
        model: The model, or its label ``app.model`` where it lives on a higher floor.
    """
    label = model if isinstance(model, str) else model._meta.label_lower  # noqa: SLF001 - public
    return may_view_label(request, label)
