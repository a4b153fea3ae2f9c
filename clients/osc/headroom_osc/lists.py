"""Commands that list: each is its path, its columns and its filters."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from osc_lib.command import command

from headroom_osc.client import capacity_of


class ListRows(command.Lister):
    """Rows of one list of the API.

    Attributes:
        path: Below ``/api/v1``.
        columns: Fields of rows, as the API calls them; one of an object in a row has a dot.
        filters: Option to the name of the filter.
    """

    path: ClassVar[str]
    columns: ClassVar[tuple[str, ...]]
    filters: ClassVar[Mapping[str, str]]

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Declare the filters."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        for option, name in self.filters.items():
            parser.add_argument(f"--{option}", dest=name, metavar=f"<{option}>")
        parser.add_argument("--limit", type=_positive, metavar="<rows>", help="Most rows; else all")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Any:  # Any: cliff's
        """Return names and values of columns."""
        given = {name: getattr(parsed_args, name) for name in self.filters.values()}
        filters = {name: value for name, value in given.items() if value is not None}
        capacity = capacity_of(self.app.client_manager)
        rows = capacity.rows(self.path, filters, most=parsed_args.limit)
        names = tuple(column.replace(".", "_") for column in self.columns)
        return names, (tuple(_value(row, column) for column in self.columns) for row in rows)


class ListCommitments(ListRows):
    """List commitments."""

    path = "/commitments"
    columns = (
        "uuid",
        "project_id",
        "project_name",
        "zone",
        "flavor_group_name",
        "resource_type",
        "state",
        "accepted_memory_bytes",
        "accepted_vcpus",
        "used_memory_bytes",
        "used_vcpus",
        "start_time",
        "end_time",
        "is_ready",
        "ready_reason",
    )
    filters = {
        "project": "project_id",
        "zone": "zone",
        "group": "flavor_group_name",
        "state": "state",
        "ends-since": "ends_since",
        "ends-before": "ends_before",
    }


class ListHosts(ListRows):
    """List hosts with what takes their room."""

    path = "/hosts"
    columns = (
        "name",
        "zone",
        "hypervisor_type",
        "state",
        "status",
        "maintenance",
        "is_ready",
        "room.effective_memory_bytes",
        "room.allocated_memory_bytes",
        "room.committed_memory_bytes",
        "room.failover_memory_bytes",
        "room.in_flight_memory_bytes",
    )
    filters = {
        "zone": "zone",
        "state": "state",
        "status": "status",
        "hypervisor-type": "hypervisor_type",
        "building-block": "building_block",
    }


class ShowCapacity(ListRows):
    """Show the capacity of flavor groups in zones, as Limes is told."""

    path = "/group-capacity"
    columns = (
        "flavor_group_name",
        "zone",
        "total_memory_bytes",
        "free_memory_bytes",
        "committed_memory_bytes",
        "reserved_unused_memory_bytes",
        "running_memory_bytes",
        "running_instances",
        "is_ready",
        "computed_at",
    )
    filters = {"group": "flavor_group_name", "zone": "zone"}


class ListUncovered(ListRows):
    """List VMs that would not survive the loss of their host."""

    path = "/uncovered-vms"
    columns = (
        "vm_uuid",
        "vm_name",
        "project_id",
        "zone",
        "host_name",
        "required_count",
        "current_count",
        "reason",
        "since",
    )
    filters = {"zone": "zone", "reason": "reason"}


class ListRefusals(ListRows):
    """List refused change requests, the newest first."""

    path = "/refusals"
    columns = ("id", "created_at", "request_id", "actor", "zone", "reason", "retry_at")
    filters = {
        "commitment": "commitment_uuid",
        "project": "project_id",
        "zone": "zone",
        "request": "request_id",
        "since": "created_since",
        "before": "created_before",
    }


class ListChanges(ListRows):
    """List what was changed, by whom, before and after, the newest first."""

    path = "/audit-entries"
    columns = (
        "id",
        "created_at",
        "actor",
        "request_id",
        "action",
        "object_type",
        "object_id",
        "before",
        "after",
        "reason",
    )
    filters = {
        "actor": "actor",
        "request": "request_id",
        "action": "action",
        "object-type": "object_type",
        "object-id": "object_id",
        "since": "created_since",
        "before": "created_before",
    }


class ListSyncs(ListRows):
    """List runs of importers and syncers, the newest first."""

    path = "/sync-runs"
    columns = (
        "id",
        "source",
        "started_at",
        "finished_at",
        "outcome",
        "counts",
        "error_code",
        "message",
    )
    filters = {
        "source": "source",
        "outcome": "outcome",
        "since": "started_since",
        "before": "started_before",
    }


class ListVMs(ListRows):
    """List VMs with their size and place."""

    path = "/vms"
    columns = (
        "uuid",
        "name",
        "project_id",
        "project_name",
        "zone",
        "host_name",
        "flavor_name",
        "memory_bytes",
        "vcpus",
        "status",
    )
    filters = {
        "project": "project_id",
        "zone": "zone",
        "host": "host_name",
        "flavor": "flavor_name",
        "status": "status",
    }


class ListDrills(command.Lister):
    """List the newest drills: what the loss of hosts, racks and pairs would do."""

    columns = (
        "zone",
        "scope",
        "finished_at",
        "failures",
        "simulated",
        "vms",
        "unprotected_vms",
        "worst_failure",
    )

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Declare the zone."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument("--zone", metavar="<zone>")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Any:  # Any: cliff's
        """Return names and values of columns."""
        asked = {"zone": parsed_args.zone} if parsed_args.zone else {}
        found = capacity_of(self.app.client_manager).get("/failover/drills", asked)
        return self.columns, _drills(found["drills"])


def _drills(drills: list[dict[str, Any]]) -> Iterator[tuple[Any, ...]]:
    for drill in drills:
        worst = drill["worst"][0]["name"] if drill["worst"] else None
        told = {**drill, "worst_failure": worst}
        yield tuple(told[column] for column in ListDrills.columns)


def _value(row: Any, column: str) -> Any:  # Any: JSON
    for name in column.split("."):
        row = None if row is None else row[name]
    return row


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number
