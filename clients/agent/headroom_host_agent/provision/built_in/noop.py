"""A provisioner for tests: it waits, or fails (spec hosts, D.11)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from headroom_host_agent.provision.built_in.base import BuiltIn
from headroom_host_agent.provision.data import Field, amount, fields_of, is_flag, number
from headroom_host_agent.provision.provisioners import HostContext, ProvisionError
from headroom_host_agent.provision.stored import Artifact
from headroom_host_agent.provision.wire import Reservation

SCHEMA: Mapping[str, Field] = {
    "sleep_ms": Field(number(0, 600_000), "milliseconds"),
    "fail": Field(is_flag, "true or false"),
}


class Noop(BuiltIn):
    """Makes nothing; it is there where ``provisioners.enabled`` names it."""

    order = 0
    data_schema = SCHEMA

    def check(self, context: HostContext, reservation: Reservation) -> None:
        """Do nothing."""

    def provision(self, context: HostContext, reservation: Reservation) -> Mapping[str, object]:
        """Wait, then fail if that is asked.

        Raises:
            ProvisionError: It is.
        """
        data = fields_of(reservation, SCHEMA)
        context.cancelled.wait(amount(data, "sleep_ms") / 1000)
        if data.get("fail"):
            raise ProvisionError("asked_to_fail", "it was asked to fail")
        return {}

    def verify(self, context: HostContext, reservation: Reservation) -> bool:
        """Return true."""
        return True

    def decommission(self, context: HostContext, reservation: Reservation) -> None:
        """Do nothing."""

    def in_use(self, artifact: Artifact) -> bool:
        """Return false."""
        return False

    def artifacts(self, context: HostContext) -> Iterable[tuple[str, str]]:
        """Return nothing."""
        return ()

    def remove(self, artifact: Artifact) -> None:
        """Do nothing."""
