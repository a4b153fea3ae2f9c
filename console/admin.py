"""Every page of the admin: Django finds them through this module, each registers its own."""

from __future__ import annotations

import console.bridge.admin
import console.capacity.decisions
import console.capacity.groups
import console.capacity.history
import console.capacity.hosts
import console.capacity.pipelines
import console.capacity.reservations
import console.commitments.commitments
import console.commitments.compaction
import console.commitments.sync_runs
import console.commitments.usage_hours
import console.commitments.vms
import console.failover.coverage
import console.failover.evacuations
import console.failover.policies
import console.failover.reservations
import console.failover.runs
import console.hosts.admin
import console.hosts.agents
import console.journal.admin
import console.placement.admin
import console.webhooks.admin  # noqa: F401
