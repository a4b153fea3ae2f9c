"""Streamed parsing of region files: elements are handed over one by one (spec region-file)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from itertools import count
from math import isinf
from pathlib import Path
from typing import Any, Final

import ijson

from hosts.region.node import INT64_MAX, UINT64_MAX, Json, Node, RegionFileError
from hosts.region.registry import Shape

MAX_DEPTH: Final = 64
READ_BYTES: Final = 1 << 18
PROGRESS_EVERY: Final = 500

Event = tuple[str, Any]  # what ijson yields: the event's name and a scalar or nothing
Sink = Callable[[Node], None]
Sinks = Mapping[str, tuple[Shape, Sink]]


class RegionFileParser:
    """Walks over one file and hands every element of a known section to its sink.

    Sections nobody reads are passed over. Memory stays bounded by the largest element.
    """

    def __init__(
        self, path: Path, sinks: Sinks, *, progress: Callable[[int], None] | None = None
    ) -> None:
        self._path = path
        self._file_name = str(path)
        self._sinks = sinks
        self._progress = progress
        self._where = ""
        self._bytes_told = 0
        self._tell: Callable[[], int] = lambda: 0
        self._elements = 0
        self.sections_seen: set[str] = set()

    def run(self) -> None:
        """Parse the file.

        Raises:
            RegionFileError: The file cannot be read, is not JSON, or an element is refused.
        """
        try:
            with self._path.open("rb") as stream:
                self._tell = stream.tell
                self._document(ijson.basic_parse(stream, buf_size=READ_BYTES))
                self._report_progress()
        except OSError as error:
            raise self._error(f"cannot be read: {error.strerror}") from None
        except (ijson.JSONError, UnicodeDecodeError) as error:
            detail = " ".join(str(error).split())[:200]
            raise self._error(f"is not valid JSON: {detail}") from None

    def _document(self, events: Iterator[Event]) -> None:
        event, _ = next(events)
        if event != "start_map":
            raise self._error("must hold a JSON object")
        for event, key in events:
            if event == "end_map":
                continue
            self._where = key
            if key in self._sinks:
                self._section(key, events)
            elif any(path.startswith(f"{key}.") for path in self._sinks):
                self._group(key, events)
            else:
                skip(events)
            self._where = ""

    def _group(self, group: str, events: Iterator[Event]) -> None:
        event, _ = next(events)
        if event != "start_map":
            raise self._error("must be an object")
        for event, key in events:
            if event == "end_map":
                return
            self._where = f"{group}.{key}"
            if self._where in self._sinks:
                self._section(self._where, events)
            else:
                skip(events)
            self._where = group

    def _section(self, section: str, events: Iterator[Event]) -> None:
        self.sections_seen.add(section)
        shape, sink = self._sinks[section]
        event, _ = next(events)
        if shape is Shape.LIST:
            if event != "start_array":
                raise self._error("must be a list")
            self._list(section, sink, events)
        else:
            if event != "start_map":
                raise self._error("must be an object")
            self._map(section, sink, events, has_objects=shape is Shape.MAP)

    def _list(self, section: str, sink: Sink, events: Iterator[Event]) -> None:
        for index in count():
            event, scalar = next(events)
            if event == "end_array":
                return
            label = f"[{index}]"
            self._where = f"{section}{label}"
            if event != "start_map":
                raise self._error("must be an object")
            sink(Node(self._build(event, scalar, events), self._file_name, section, label))
            self._count_element()

    def _map(self, section: str, sink: Sink, events: Iterator[Event], *, has_objects: bool) -> None:
        for event, key in events:
            if event == "end_map":
                return
            label = f".{key}"
            self._where = f"{section}{label}"
            if "\0" in key:
                raise self._error("contains a NUL character")
            built = self._build(*next(events), events)
            if not has_objects:
                sink(Node({key: built}, self._file_name, section, ""))
                continue
            if not isinstance(built, dict):
                raise self._error("must be an object")
            sink(Node(built, self._file_name, section, label))
            self._count_element()

    def _build(self, event: str, scalar: Json, events: Iterator[Event]) -> Json:  # noqa: C901, PLR0912 - the hot loop of the import
        if event == "start_map":
            root: Json = {}
        elif event == "start_array":
            root = []
        else:
            return self._checked(event, scalar)
        current, key = root, ""
        stack: list[tuple[Json, bool]] = []
        is_map = event == "start_map"
        for kind, found in events:
            if kind == "map_key":
                key = found if "\0" not in found else self._refuse("contains a NUL character")
                continue
            if kind in {"end_map", "end_array"}:
                if not stack:
                    return root
                current, is_map = stack.pop()
                continue
            opened: Json = None
            entry: Json
            if kind == "start_map":
                opened = entry = {}
            elif kind == "start_array":
                opened = entry = []
            else:
                entry = self._checked(kind, found)
            if is_map:
                current[key] = entry
            else:
                current.append(entry)
            if opened is not None:
                if len(stack) >= MAX_DEPTH:
                    self._refuse(f"is nested deeper than {MAX_DEPTH} levels")
                stack.append((current, is_map))
                current, is_map = opened, kind == "start_map"
        return root

    def _checked(self, event: str, scalar: Json) -> Json:
        if event == "string":
            if "\0" in scalar:
                self._refuse("contains a NUL character")
        elif event == "number":
            if isinstance(scalar, Decimal):
                if isinf(float(scalar)):
                    self._refuse("contains a number out of range")
            elif not -INT64_MAX <= scalar <= UINT64_MAX:
                self._refuse("contains a number out of range")
        return scalar

    def _refuse(self, problem: str) -> Json:
        raise self._error(problem)

    def _error(self, problem: str) -> RegionFileError:
        return RegionFileError(file_name=self._file_name, path=self._where, problem=problem)

    def _count_element(self) -> None:
        self._elements += 1
        if self._elements % PROGRESS_EVERY == 0:
            self._report_progress()

    def _report_progress(self) -> None:
        if self._progress is not None:
            position = self._tell()
            self._progress(position - self._bytes_told)
            self._bytes_told = position


def skip(events: Iterator[Event]) -> None:
    """Pass over the next JSON value, whatever it is."""
    depth = 0
    for event, _ in events:
        if event in {"start_map", "start_array"}:
            depth += 1
        elif event in {"end_map", "end_array"}:
            depth -= 1
        if depth == 0 and event != "map_key":
            return
