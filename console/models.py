"""What viewers keep for themselves and each other."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models.functions import Now

LONGEST_NAME = 80
LONGEST_QUERY = 2000


class SavedFilter(models.Model):
    """Filters, search and order of a list under a name. Writer: :mod:`console.saved_filters`."""

    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    list_label = models.CharField(max_length=100, help_text="app.model of the list")
    name = models.CharField(max_length=LONGEST_NAME)
    query = models.CharField(max_length=LONGEST_QUERY, help_text="of the list's address")
    is_shared = models.BooleanField(default=False, db_default=False)
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        ordering = ("name", "id")
        constraints = [
            models.UniqueConstraint(
                fields=["list_label", "owner", "name"], name="console_savedfilter_name_of_owner"
            )
        ]

    def __str__(self) -> str:
        return f"{self.list_label} {self.name}"
