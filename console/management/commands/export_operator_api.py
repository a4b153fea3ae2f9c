"""``manage.py export_operator_api``: write the OpenAPI document of ``/api/v1``."""

from __future__ import annotations

from pathlib import Path

from django.conf import settings
from django.core.management.base import BaseCommand

from console.api.document import DOCUMENT
from console.api.schema import openapi_document


class Command(BaseCommand):
    """Write the document that ``/api/schema`` serves."""

    help = "Write console/api/openapi.yaml from the lists and from docs/api."

    def handle(self, *_: object, **__: object) -> None:
        """Write it."""
        text = openapi_document(Path(settings.BASE_DIR) / "docs" / "api")
        DOCUMENT.write_text(text, encoding="utf-8")
        self.stdout.write(f"wrote {DOCUMENT.name}")
