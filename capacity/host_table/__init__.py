"""The scheduling host table of this process (spec scheduling, 14.3 and 14.5).

Loaded once, then refreshed by change: a use reads what transactions wrote that the last read did
not see, never the region (design, "Concurrency").
"""

from __future__ import annotations

from capacity.host_table.cache import (
    HostTableCache,
    HostTableReading,
    current_host_table,
    read_host_table,
    verify_host_table,
)
from capacity.host_table.differences import table_differences

__all__ = [
    "HostTableCache",
    "HostTableReading",
    "current_host_table",
    "read_host_table",
    "table_differences",
    "verify_host_table",
]
