"""No function, class or constant of the product is there for tests alone.

What a test needs and the product does not stands in ``tests/``. Looked at are names that modules
show: whether another module imports them, they are used where they stand, or named in a text, such
as a setting. What a decorator registers, models, commands and apps are found by their frameworks.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterator

from config.launcher.places import this_checkout

ROOT = this_checkout().root
#: Found by Django and by our registry of sections.
FOUND_BY_NAME = {"app_name", "urlpatterns", "handler400", "handler500", "register"}
#: Asked for by somebody else: who.
KEPT = {
    "cloud.inside.driver.Driver": "Nova loads it",
    "console.api.schema.StrictFilterExtension": "drf-spectacular finds its extensions",
}
#: Pages that say which names others may rely on.
PUBLISHED = ("failover-names.md", "failover.md")
Place = tuple[str, str]  # module and name in it


def packages() -> list[str]:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    return list(tomllib.loads(text)["tool"]["importlinter"]["root_packages"])


def modules() -> dict[str, ast.Module]:
    found = {}
    for path in (file for package in packages() for file in sorted((ROOT / package).rglob("*.py"))):
        if "migrations" not in path.parts:
            parts = path.relative_to(ROOT).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            found[name] = ast.parse(path.read_text(encoding="utf-8"))
    return found


def shown(tree: ast.Module) -> Iterator[tuple[str, ast.stmt]]:
    """Yield the public names of a module that no framework finds by itself."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names = [node.name] if not _is_registered(node) else []
        elif isinstance(node, ast.Assign):
            names = [target.id for target in node.targets if isinstance(target, ast.Name)]
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names = [node.target.id]
        else:
            names = []
        yield from ((name, node) for name in names if not name.startswith("_"))


def _is_registered(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> bool:
    by = {ast.unparse(one).partition("(")[0] for one in node.decorator_list}
    if by - {"dataclass", "contextmanager", "cache", "lru_cache", "paused_collector"}:
        return True
    bases = {ast.unparse(base) for base in node.bases} if isinstance(node, ast.ClassDef) else set()
    return node.name == "Command" or bool(bases & {"AppConfig", "models.Model", "FollowedModel"})


def _assigned(parts: list[tuple[ast.stmt, set[str]]]) -> set[str]:
    return {
        target.id
        for one, _ in parts
        if isinstance(one, ast.Assign)
        for target in one.targets
        if isinstance(target, ast.Name)
    }


def importers(trees: dict[str, ast.Module]) -> dict[Place, set[str]]:
    """Return which modules import a name of another, or name it behind a module they import."""
    found: dict[Place, set[str]] = defaultdict(set)
    for module, tree in trees.items():
        known: dict[str, str] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                for one in node.names:
                    whole = f"{node.module}.{one.name}"
                    if whole in trees:
                        known[one.asname or one.name] = whole
                    else:
                        found[node.module, one.name].add(module)
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                found[known.get(node.value.id, ""), node.attr].add(module)
    return found


def loads(statement: ast.stmt) -> set[str]:
    names = (node for node in ast.walk(statement) if isinstance(node, ast.Name))
    return {node.id for node in names if isinstance(node.ctx, ast.Load)}


def named(trees: dict[str, ast.Module]) -> set[str]:
    """Return what is named in words: by settings and entry points, and as published names."""
    texts = [
        node.value
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    texts += [(ROOT / "docs" / page).read_text("utf-8") for page in PUBLISHED]
    found = (name for text in texts for name in re.findall(r"\b\w+(?:[.:]\w+)+", text))
    return {name.replace(":", ".") for name in found}


def test_no_name_is_there_for_tests_alone() -> None:
    trees = modules()
    uses, words = importers(trees), named(trees)
    inside = {module: [(one, loads(one)) for one in tree.body] for module, tree in trees.items()}
    shows_on = {module for module, parts in inside.items() if "__all__" in _assigned(parts)}

    def is_asked(module: str, name: str, definition: ast.stmt | None = None) -> bool:
        """Whether it is used where it stands, named in words, or asked for by another module.

        One that only shows it on counts if somebody asks that one.
        """
        return (
            any(name in names for one, names in inside[module] if one is not definition)
            or f"{module}.{name}" in words
            or any(
                other not in shows_on or is_asked(other, name)
                for other in uses.get((module, name), ())
            )
        )

    left = [
        f"{module}.{name}"
        for module, tree in trees.items()
        if module != "config.settings"
        for name, definition in shown(tree)
        if name not in FOUND_BY_NAME and not is_asked(module, name, definition)
    ]
    assert sorted(left) == sorted(KEPT)
