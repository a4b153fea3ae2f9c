"""Collect JSON schemas of what the chart makes, for kubeconform and for tests without a network.

``python -m tests.deploy.collect_schemas SWAGGER CRD...`` takes ``api/openapi-spec/swagger.json`` of
Kubernetes and definitions of custom resources, and writes ``tests/data/kubernetes/``, where
``kubeconform -strict -schema-location tests/data/kubernetes/{{.ResourceKind}}.json`` looks.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

SCHEMAS = Path(__file__).resolve().parents[1] / "data" / "kubernetes"
KINDS = (
    "io.k8s.api.apps.v1.Deployment",
    "io.k8s.api.autoscaling.v2.HorizontalPodAutoscaler",
    "io.k8s.api.batch.v1.Job",
    "io.k8s.api.core.v1.ConfigMap",
    "io.k8s.api.core.v1.Pod",
    "io.k8s.api.core.v1.Service",
    "io.k8s.api.core.v1.ServiceAccount",
    "io.k8s.api.networking.v1.Ingress",
    "io.k8s.api.networking.v1.NetworkPolicy",
    "io.k8s.api.policy.v1.PodDisruptionBudget",
)
EITHER = {"anyOf": [{"type": "string"}, {"type": "number"}]}
#: Prose, and what only Kubernetes reads; patterns are of Go.
SAID_ONLY = {"description", "pattern", "x-kubernetes-group-version-kind", "x-kubernetes-map-type"}
PREFIX = "#/definitions/"
Schema = dict[str, Any]  # Any: JSON


def strict(node: Any, *, is_names: bool = False) -> Any:  # Any: JSON
    """Return a schema without its prose that refuses fields which it does not know."""
    if isinstance(node, list):
        return [strict(one) for one in node]
    if not isinstance(node, dict):
        return node
    if node.get("x-kubernetes-int-or-string") or node.get("format") == "int-or-string":
        return EITHER
    kept = {
        name: strict(inner, is_names=name == "properties")
        for name, inner in node.items()
        if is_names or (name not in SAID_ONLY and not name.startswith("x-kubernetes"))
    }
    if not is_names and isinstance(node.get("properties"), dict):
        kept.setdefault("additionalProperties", False)
    return kept


def references(node: Any) -> Iterator[str]:  # Any: JSON
    """Yield the definitions that a schema refers to."""
    if isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"].removeprefix(PREFIX)
        for inner in node.values():
            yield from references(inner)
    elif isinstance(node, list):
        for inner in node:
            yield from references(inner)


def standalone(definitions: Schema, name: str) -> Schema:
    """Return the schema of a kind with all that it refers to."""
    needed: Schema = {}
    waiting = list(references(definitions[name]))
    while waiting:
        one = waiting.pop()
        if one not in needed:
            needed[one] = strict(definitions[one])
            waiting += references(definitions[one])
    if (quantity := "io.k8s.apimachinery.pkg.api.resource.Quantity") in needed:
        needed[quantity] = EITHER
    made: Schema = strict(definitions[name])
    made["properties"].pop("status", None)
    return {**made, "required": ["apiVersion", "kind", "metadata"], "definitions": needed}


def custom(path: Path) -> tuple[str, Schema]:
    """Return the kind of a custom resource and the schema of its served version."""
    spec = yaml.safe_load(path.read_text(encoding="utf-8"))["spec"]
    made: Schema = strict(spec["versions"][0]["schema"]["openAPIV3Schema"])
    made["properties"]["metadata"] = {"type": "object"}
    return spec["names"]["kind"], made


def main(swagger: str, *crds: str) -> None:
    """Write a file for each kind."""
    definitions = json.loads(Path(swagger).read_text(encoding="utf-8"))["definitions"]
    made = {name.rpartition(".")[2]: standalone(definitions, name) for name in KINDS}
    made |= dict(custom(Path(path)) for path in crds)
    SCHEMAS.mkdir(exist_ok=True)
    for kind, schema in made.items():
        text = json.dumps(schema, separators=(",", ":"), sort_keys=True)
        (SCHEMAS / f"{kind.lower()}.json").write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
