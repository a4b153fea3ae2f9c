"""The documents of our APIs, each read once: to parse one takes a fifth of a second."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator

from console.api.document import DOCUMENT

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "api"
SUFFIX = ".openapi.yaml"


def place_of(api: str) -> Path:
    return DOCUMENT if api == "operator" else FOLDER / f"{api}{SUFFIX}"


@cache
def document_of(api: str) -> dict[str, Any]:
    """Return the document of an API, which all tests share: nobody changes it."""
    content: dict[str, Any] = yaml.safe_load(place_of(api).read_text(encoding="utf-8"))
    return content


@cache
def validator(api: str, schema: str) -> Draft202012Validator:
    """Return what checks content against a schema of a document, and its formats."""
    root = {**document_of(api), "$ref": f"#/components/schemas/{schema}"}
    return Draft202012Validator(root, format_checker=Draft202012Validator.FORMAT_CHECKER)
