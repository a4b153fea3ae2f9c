"""Writing a region file: canonical order, sorted keys, one element a line (spec region-file)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

import orjson
from django.db import connection, transaction

from hosts.region.node import Json
from hosts.region.registry import DumpOptions, RegionSection, Shape, registry
from journal.statements import execute

GROUP_ORDER = ("about", "identity", "compute", "image", "placement", "limes", "headroom")
Elements = Iterator[Json]


class RegionFileWriter:
    """Writes sections one after the other without holding them in memory."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._group = ""
        self._is_first_group = True
        self._is_first_section = True

    def write(self, path: str, shape: Shape, elements: Elements) -> None:
        """Write one section; sections of a group must follow each other.

        Args:
            path: Path of the section, such as ``compute.servers``.
            shape: A list yields elements, a map and members yield pairs of key and element.
            elements: The elements in canonical order.
        """
        group, _, name = path.partition(".")
        if group != self._group:
            self._end_group()
            self._out(b"{\n" if self._is_first_group else b",\n")
            self._is_first_group = False
            self._out(orjson.dumps(group) + b": {")
            self._group, self._is_first_section = group, True
        if not name:
            self._elements(shape, elements, separator=b"\n  ")
            return
        self._out(b"\n " if self._is_first_section else b",\n ")
        self._is_first_section = False
        self._out(orjson.dumps(name) + (b": [" if shape is Shape.LIST else b": {"))
        self._elements(shape, elements, separator=b"\n  ")
        self._out(b"]" if shape is Shape.LIST else b"}")

    def finish(self) -> None:
        """Close what is open."""
        self._end_group()
        self._out(b"{}\n" if self._is_first_group else b"\n}\n")

    def _elements(self, shape: Shape, elements: Elements, *, separator: bytes) -> None:
        comma = b""
        for element in elements:
            if shape is Shape.LIST:
                line = orjson.dumps(element, option=orjson.OPT_SORT_KEYS)
            else:
                key, entry = element
                line = orjson.dumps(key) + b": " + orjson.dumps(entry, option=orjson.OPT_SORT_KEYS)
            self._out(comma + separator + line)
            comma = b","

    def _end_group(self) -> None:
        if self._group:
            self._out(b"}")
            self._group = ""

    def _out(self, chunk: bytes) -> None:
        self._stream.write(chunk)


def in_file_order(sections: tuple[RegionSection, ...]) -> list[RegionSection]:
    """Return sections in the order of the file: groups as specified, names by alphabet."""
    return sorted(
        sections, key=lambda section: (GROUP_ORDER.index(section.path.split(".")[0]), section.path)
    )


def dump_region(stream: BinaryIO, options: DumpOptions) -> None:
    """Write every registered section from one consistent snapshot of the database.

    Args:
        stream: Where to.
        options: What goes in.
    """
    with transaction.atomic():
        if not connection.savepoint_ids:  # the outermost transaction: nothing was read in it yet
            execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        writer = RegionFileWriter(stream)
        for section in in_file_order(registry.sections()):
            if section.dumper is not None:
                writer.write(section.path, section.shape, section.dumper(options))
        writer.finish()
