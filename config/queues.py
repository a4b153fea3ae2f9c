"""The queues that workers take tasks from; each job says in which it waits (``core.jobs``).

What is quick never waits behind what takes an hour. Workers take some of the queues or all
(docs/operations.md, "Queues and workers").
"""

from __future__ import annotations

from typing import Final

SOON: Final = "soon"
STEADY: Final = "steady"
LONG: Final = "long"
QUEUES: Final = (SOON, STEADY, LONG)
