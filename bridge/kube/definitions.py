"""The definitions of our kinds: from ``deploy/crds/`` into a cluster."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from bridge.domain.kinds import Naming
from bridge.kube.client import ClusterClient, Json

FOLDER: Final = Path(__file__).resolve().parents[2] / "deploy" / "crds"
CRD_PATH: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
POLICY_PATH: Final = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
BINDING_PATH: Final = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"
INSTALLER: Final = "headroom-install"


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """One object that makes a kind known, or guards it."""

    path: str
    manifest: Json

    @property
    def title(self) -> str:
        """What people call it."""
        return f"{self.manifest['kind']} {self.manifest['metadata']['name']}"


def load_definitions(naming: Naming) -> list[Definition]:
    """Return the definitions of all kinds, under a group and version, in order of their files."""
    found = []
    for file in sorted(FOLDER.glob("*.yaml")):
        manifest = yaml.safe_load(file.read_text(encoding="utf-8"))
        spec = manifest["spec"]
        manifest["metadata"]["name"] = f"{spec['names']['plural']}.{naming.group}"
        spec["group"] = naming.group
        spec["versions"][0]["name"] = naming.version
        found.append(_definition(CRD_PATH, manifest))
    return found


def guard_definitions(naming: Naming, *, user: str) -> list[Definition]:
    """Return a policy that lets only one user write objects of our kinds, and its binding.

    Deleting a definition or a namespace is not its business, so nothing hangs for it.

    Args:
        user: As the cluster names who the bridge is.
    """
    name = f"only-the-bridge.{naming.group}"
    said = "Headroom's bridge writes these objects from its database: change them there"
    rule = {
        "apiGroups": [naming.group],
        "apiVersions": ["*"],
        "operations": ["CREATE", "UPDATE", "DELETE"],
        "resources": ["*", "*/status"],
    }
    collector = "system:serviceaccount:kube-system:generic-garbage-collector"
    users = ", ".join(repr(each) for each in (user, collector))
    policy: Json = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": name},
        "spec": {
            "failurePolicy": "Ignore",
            "matchConstraints": {"resourceRules": [rule]},
            "validations": [
                {"expression": f"request.userInfo.username in [{users}]", "message": said}
            ],
        },
    }
    binding: Json = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": name},
        "spec": {"policyName": name, "validationActions": ["Deny"]},
    }
    return [_definition(POLICY_PATH, policy), _definition(BINDING_PATH, binding)]


def _definition(path: str, manifest: Json) -> Definition:
    return Definition(path=f"{path}/{manifest['metadata']['name']}", manifest=manifest)


def difference(client: ClusterClient, definition: Definition) -> str:
    """Return what applying a definition would change, as a unified diff; empty when nothing.

    The cluster itself says what would become of it.
    """
    before = client.get(definition.path)
    after, _ = client.apply(definition.path, definition.manifest, manager=INSTALLER, dry_run=True)
    lines = difflib.unified_diff(
        [] if before is None else _lines(before),
        _lines(after),
        f"{definition.title} (installed)" if before else "/dev/null",
        f"{definition.title} (new)",
        lineterm="",
    )
    return "\n".join(lines)


def install(client: ClusterClient, definition: Definition) -> None:
    """Apply a definition."""
    client.apply(definition.path, definition.manifest, manager=INSTALLER)


def is_served(client: ClusterClient, definition: Definition) -> bool:
    """Return whether a kind can be used now; what is no kind, at once."""
    if definition.manifest["kind"] != "CustomResourceDefinition":
        return True
    found = client.get(definition.path) or {}
    conditions = found.get("status", {}).get("conditions", ())
    return any(each["type"] == "Established" and each["status"] == "True" for each in conditions)


def await_served(
    client: ClusterClient,
    definitions: list[Definition],
    *,
    wait: Callable[[Callable[[], bool]], bool],
) -> bool:
    """Return whether all kinds came to be usable within the patience of ``wait``."""
    return wait(lambda: all(is_served(client, each) for each in definitions))


def _lines(document: Json) -> list[str]:
    return yaml.safe_dump(_stable(document), sort_keys=True, width=1000).splitlines()


def _stable(document: Json) -> dict[str, Any]:
    """Return a document without what every write changes."""
    moving = ("managedFields", "resourceVersion", "generation", "uid", "creationTimestamp")
    about = {key: value for key, value in document["metadata"].items() if key not in moving}
    return {
        "kind": document["kind"],
        "apiVersion": document["apiVersion"],
        "metadata": about,
        "spec": document["spec"],
    }
