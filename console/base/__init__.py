"""What every admin class and page of the console stands on.

Rows that the system writes are shown read-only, with their explanation; rows that operators edit
are written through services, which audit.
"""

from __future__ import annotations

from console.base.columns import Column, column, link, shown, with_id
from console.base.filters import AnswerFilter, ChoiceFilter, since_filter
from console.base.lists import (
    COUNT_CAP,
    BaseAdmin,
    BoundedSearch,
    CappedPaginator,
    CheckedActions,
    ReadOnlyInline,
    RowT,
    SystemOwnedAdmin,
)
from console.base.pieces import (
    TONE_ICONS,
    PageData,
    badge,
    counts_block,
    json_block,
    plain_counts,
    text_block,
    time_tag,
    verdict,
    wrapped,
)
from console.base.viewer import may_view, request_actor

__all__ = [
    "COUNT_CAP",
    "TONE_ICONS",
    "AnswerFilter",
    "BaseAdmin",
    "BoundedSearch",
    "CappedPaginator",
    "CheckedActions",
    "ChoiceFilter",
    "Column",
    "PageData",
    "ReadOnlyInline",
    "RowT",
    "SystemOwnedAdmin",
    "badge",
    "column",
    "counts_block",
    "json_block",
    "link",
    "may_view",
    "plain_counts",
    "request_actor",
    "shown",
    "since_filter",
    "text_block",
    "time_tag",
    "verdict",
    "with_id",
    "wrapped",
]
