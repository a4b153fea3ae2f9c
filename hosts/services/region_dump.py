"""Writing Headroom's own tables as a region file (spec region-file, ``dump_region --from-db``)."""

from __future__ import annotations

from typing import BinaryIO

from django.db import connection, transaction

from hosts.region.dump import RegionFileWriter, in_file_order
from hosts.region.registry import DumpOptions, Registry, registry
from journal.statements import execute


def dump_region(stream: BinaryIO, options: DumpOptions, *, sections: Registry = registry) -> None:
    """Write every registered section from one consistent snapshot of the database.

    Args:
        stream: Where to.
        options: What goes in.
        sections: Registry of sections.
    """
    with transaction.atomic():
        if not connection.savepoint_ids:  # the outermost transaction: nothing was read in it yet
            execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        writer = RegionFileWriter(stream)
        for section in in_file_order(sections.sections()):
            writer.write(section.path, section.shape, section.dumper(options))
        writer.finish()
