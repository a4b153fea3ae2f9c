"""Conditions of statements that follow changes (design, "Concurrency")."""

from __future__ import annotations

from typing import Final

NEWEST_XID: Final = (1 << 63) - 1


def written_since(xid: str, column: str = "changed_xid") -> str:
    """Return the SQL condition that a tracked row was written by a transaction or a later one.

    The range has an upper end that nothing reaches: of a table that PostgreSQL has no statistics of
    it takes such a range for a small part and looks it up by index, and a condition with one end
    for a third, for which it reads the table from end to end.

    Args:
        xid: SQL expression of the transaction's id, a bigint.
        column: The row's ``changed_xid``, with its alias.
    """
    return f"{column} >= {xid} AND {column} <= {NEWEST_XID}"


# What a snapshot does not show: later transactions, and those that were running. Both are looked up
# by index, so that a long transaction anywhere in the server costs nothing.
UNSEEN: Final = f"({written_since('%(xmax)s')} OR changed_xid = ANY(%(running)s::bigint[]))"


def not_in_snapshot(alias: str, *, snapshot: str, xmin: str) -> str:
    """Return the SQL condition that a tracked row is not in a snapshot as it is now.

    Args:
        alias: Of the row's table.
        snapshot: SQL expression of the ``pg_snapshot`` or its text.
        xmin: SQL expression of its ``pg_snapshot_xmin``, a bigint.
    """
    return (
        f"{written_since(xmin, f'{alias}.changed_xid')} AND NOT pg_visible_in_snapshot("
        f"{alias}.changed_xid::text::xid8, {snapshot}::pg_snapshot)"
    )
