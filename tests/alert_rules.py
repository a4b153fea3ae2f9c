"""Alert rules as they are shipped, by the app that they watch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).resolve().parents[1] / "deploy" / "prometheus"


def rules(app: str) -> list[dict[str, Any]]:  # Any: the shape of a rules file
    document = yaml.safe_load((FOLDER / f"{app}.rules.yaml").read_text(encoding="utf-8"))
    return [rule for group in document["groups"] for rule in group["rules"]]
