"""Columns and indexes that several models of this app have."""

from __future__ import annotations

from decimal import Decimal

from django.contrib.postgres.indexes import GinIndex, OpClass
from django.core.validators import MinValueValidator
from django.db import models
from django.db.models.functions import Upper


def ratio_field() -> models.DecimalField[Decimal, Decimal]:
    """Return an overcommit ratio column: 1.0 unless configured (decisions)."""
    return models.DecimalField(
        max_digits=8,
        decimal_places=4,
        default=Decimal(1),
        validators=[MinValueValidator(Decimal("0.0001"))],
    )


def parts_of_names(name: str) -> GinIndex:
    """Return an index that finds three letters anywhere in a name, of any case."""
    return GinIndex(OpClass(Upper("name"), name="gin_trgm_ops"), name=name)
