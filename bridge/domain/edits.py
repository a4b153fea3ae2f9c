"""What others changed of an object, and what of it is left to them.

For each writer the cluster keeps which fields are its own (``metadata.managedFields``). A field
whose value is not ours and that we do not own any more, or never did, was changed by somebody
else; labels and annotations are looked at where we set them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from bridge.domain.objects import MOVING, Json

#: Names of fields on the way to a value; a member of a list as the cluster names it.
Path = tuple[str, ...]
#: Lists that are maps by a field of their members, as the definitions say.
LIST_KEYS: Final = {"conditions": "type", "flavors": "flavorName", "instances": "id"}
PARTS: Final = ("spec", "status")
MAPS: Final = ("labels", "annotations")
CONDITIONS: Final = ("status", "conditions")


def leaves(document: Mapping[str, Any], at: Path = ()) -> dict[Path, Any]:
    """Return the values of a document by their paths; lists that are no maps are values."""
    found: dict[Path, Any] = {}
    for key, value in document.items():
        path = (*at, key)
        if isinstance(value, dict) and value:
            found |= leaves(value, path)
        elif isinstance(value, list) and key in LIST_KEYS:
            for member in value:
                found |= leaves(member, (*path, _member(key, member)))
        else:
            found[path] = value
    return found


def _member(key: str, member: Mapping[str, Any]) -> str:
    name = LIST_KEYS[key]
    return f"k:{json.dumps({name: member.get(name)}, separators=(',', ':'), ensure_ascii=False)}"


def edited(
    found: Mapping[str, Any],
    wanted: Mapping[str, Any],
    *,
    managers: Iterable[str],
    is_settled: bool,
) -> list[Path]:
    """Return what others changed, in order.

    A field of ours that is missing was taken away, or the database has it since the last write.

    Args:
        found: The object as the cluster has it.
        wanted: As it should be: ``metadata``, ``spec`` and ``status``.
        managers: Names that we write under.
        is_settled: Whether the database says what it said at the last write.
    """
    about = found["metadata"]
    names = set(managers)
    entries = about.get("managedFields") or ()
    own = [entry.get("fieldsV1") or {} for entry in entries if entry.get("manager") in names]
    ours = leaves({part: wanted.get(part, {}) for part in PARTS})
    there = leaves({part: found.get(part) or {} for part in PARTS})
    for name in MAPS:
        for key, value in wanted["metadata"].get(name, {}).items():
            path = ("metadata", name, key)
            ours[path] = value
            there[path] = (about.get(name) or {}).get(key)
    return sorted(
        path
        for path in ours.keys() | there.keys()
        if ours.get(path) != there.get(path)
        and (is_settled or there.get(path) is not None)
        and not _is_free(path, ours)
        and not any(_owns(fields, path) for fields in own)
    )


def _is_free(path: Path, ours: Mapping[Path, Any]) -> bool:
    """Return whether a field is nobody's business: a condition of others, a time that moves."""
    return path[-1] in MOVING or len(path) == 1 or (path[:2] == CONDITIONS and path not in ours)


def _owns(fields: Mapping[str, Any], path: Path) -> bool:
    node: Any = fields
    for part in path:
        node = node.get(part if part.startswith("k:") else f"f:{part}")
        if node is None:
            return False
        if not node:  # owned as a whole
            return True
    return True


def surplus(found: Mapping[str, Any], wanted: Mapping[str, Any], at: str) -> list[Json]:
    """Return the steps of a JSON patch that take away what an object has and should not have.

    Args:
        found: Spec or status of the object.
        wanted: The same as it should be.
        at: Where that is in the object, such as ``/spec``.
    """
    steps: list[Json] = []
    for key, value in found.items():
        path = f"{at}/{key.replace('~', '~0').replace('/', '~1')}"
        if key not in wanted:
            steps.append({"op": "remove", "path": path})
        elif isinstance(value, dict) and isinstance(wanted[key], dict):
            steps += surplus(value, wanted[key], path)
        elif key in LIST_KEYS and key != CONDITIONS[1] and isinstance(value, list):
            names = {_member(key, member) for member in wanted[key]}
            steps += [
                {"op": "remove", "path": f"{path}/{index}"}
                for index, member in reversed(list(enumerate(value)))
                if _member(key, member) not in names
            ]
    return steps


def adopted_fields(paths: Iterable[Path], manifest: Json) -> list[Json]:
    """Return what is kept of edits that are left: the field, and what the database said of it."""
    values = manifest_leaves(manifest)
    return [
        {"path": list(path), **({"value": values[path]} if path in values else {})}
        for path in paths
        if path[0] != "status"
    ]


def still_adopted(fields: Iterable[Mapping[str, Any]], manifest: Json) -> list[Json]:
    """Return those of which the database says what it said when they were left."""
    values = manifest_leaves(manifest)
    return [
        dict(field)
        for field in fields
        if (tuple(field["path"]) in values) == ("value" in field)
        and values.get(tuple(field["path"])) == field.get("value")
    ]


def without(manifest: Json, fields: Iterable[Mapping[str, Any]]) -> Json:
    """Return an object to be applied without the fields that are left to others."""
    paths = {tuple(field["path"]) for field in fields}
    return _without(manifest, paths, ()) if paths else manifest


def _without(document: Json, paths: set[Path], at: Path) -> Json:
    kept: Json = {}
    for key, value in document.items():
        path = (*at, key)
        if path in paths:
            continue
        if isinstance(value, dict) and value:
            if rest := _without(value, paths, path):
                kept[key] = rest
        else:
            kept[key] = value
    return kept


def manifest_leaves(manifest: Json) -> dict[Path, Any]:
    """Return the values that an object sets: its spec, labels and annotations."""
    found = leaves({"spec": manifest["spec"]})
    for name in MAPS:
        found |= leaves(manifest["metadata"].get(name, {}), ("metadata", name))
    return found


def path_text(path: Iterable[str]) -> str:
    """Return a path as people write it."""
    return ".".join(part.removeprefix("k:") for part in path)
