"""What a Placement holds as lines of JSON, one per thing, and back (spec placement, 10.3).

The first line names the format. Parents come before their children, so that a reader may stop
anywhere; names and amounts are sorted, so that equal contents make equal files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any, Final

import orjson

from placement.domain.capacity import InventoryAmounts
from placement.domain.errors import PlacementError
from placement.domain.transfer import ConsumerRecord, Contents, ProviderRecord

FORMAT: Final = "headroom-placement"
VERSION: Final = 1

Line = Mapping[str, Any]  # Any: JSON


class UnreadableExportError(PlacementError):
    """A file that is no export, or a damaged one."""

    code = "placement_export_unreadable"


def export_lines(contents: Contents) -> Iterator[bytes]:
    """Yield the lines of an export, each with its line break."""
    yield _line({"format": FORMAT, "version": VERSION})
    for kind, names in (("class", contents.classes), ("trait", contents.traits)):
        for name in sorted(names):
            yield _line({kind: name})
    for provider in _parents_first(contents.providers):
        yield _line({"provider": _provider_line(provider)})
    for _, consumer in sorted(contents.consumers.items()):
        yield _line({"consumer": asdict(consumer)})


def contents_of_lines(lines: Iterable[bytes]) -> Contents:
    """Return what the lines of an export say.

    Raises:
        UnreadableExportError: names the first line that cannot be read.
    """
    classes: set[str] = set()
    traits: set[str] = set()
    providers: dict[str, ProviderRecord] = {}
    consumers: dict[str, ConsumerRecord] = {}
    number = 0
    for number, line in enumerate(lines, 1):
        try:
            content = orjson.loads(line)
            if number == 1:
                _check_format(content)
            elif "class" in content:
                classes.add(str(content["class"]))
            elif "trait" in content:
                traits.add(str(content["trait"]))
            elif "provider" in content:
                provider = _provider(content["provider"])
                providers[provider.uuid] = provider
            else:
                consumer = ConsumerRecord(**content["consumer"])
                consumers[consumer.uuid] = consumer
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise UnreadableExportError(f"line {number} cannot be read: {error!r}") from error
    if not number:
        raise UnreadableExportError("the file is empty")
    return Contents(
        classes=frozenset(classes),
        traits=frozenset(traits),
        providers=providers,
        consumers=consumers,
    )


def _check_format(content: Line) -> None:
    if content["format"] != FORMAT or content["version"] != VERSION:
        raise ValueError(f"is no {FORMAT} of version {VERSION}")


def _line(content: Line) -> bytes:
    return orjson.dumps(content, option=orjson.OPT_SORT_KEYS | orjson.OPT_APPEND_NEWLINE)


def _parents_first(providers: Mapping[str, ProviderRecord]) -> Iterator[ProviderRecord]:
    children: dict[str, list[str]] = {}
    for uuid, record in sorted(providers.items()):
        parent = record.parent if record.parent in providers else ""
        children.setdefault(parent, []).append(uuid)
    waiting = children.get("", [])[::-1]
    while waiting:
        uuid = waiting.pop()
        yield providers[uuid]
        waiting += children.get(uuid, [])[::-1]


def _provider_line(provider: ProviderRecord) -> dict[str, Any]:  # Any: JSON
    return {
        **asdict(provider),
        "traits": sorted(provider.traits),
        "aggregates": sorted(provider.aggregates),
    }


def _provider(content: Line) -> ProviderRecord:
    return ProviderRecord(
        **{
            **content,
            "inventories": {
                name: InventoryAmounts(**amounts)
                for name, amounts in content["inventories"].items()
            },
            "traits": frozenset(content["traits"]),
            "aggregates": frozenset(content["aggregates"]),
        }
    )
