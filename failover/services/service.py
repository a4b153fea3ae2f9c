"""The published entry to failover: one object that runs loop and validation (spec failover, 2)."""

from __future__ import annotations

from capacity.models import Reservation, ReservationKind
from failover.conf import FailoverConfig, current_config
from failover.log import new_global_request_id
from failover.metrics import observe_run
from failover.selectors.scheduler import SchedulerHosts
from failover.selectors.zone import failover_requirements, failover_zones
from failover.services.events import EventWriter, record_events
from failover.services.loop import ChooserFactory, RunMonitor, ZoneRun, reconcile_zone
from failover.services.replanning import Replan, replan_vm
from failover.services.validation import ValidationReport, validate_zone
from hosts.vm_source import DatabaseVMSource, VMSource


class FailoverService:
    """Runs the loop and validates reservations.

    Attributes:
        vm_source: Where single VMs are looked up; the loop reads zones as columns.
        config: What the loop may do; settings and policies when None.
        scheduler: Who says what the scheduler thinks of hosts.
        monitor: Hears of every run that was completed.
    """

    def __init__(
        self,
        vm_source: VMSource | None = None,
        config: FailoverConfig | None = None,
        scheduler: ChooserFactory = SchedulerHosts,
        events: EventWriter = record_events,
        monitor: RunMonitor = observe_run,
    ) -> None:
        self.vm_source: VMSource = vm_source or DatabaseVMSource()
        self.config = config
        self.scheduler = scheduler
        self.events = events
        self.monitor = monitor

    def reconcile_periodic(self, az: str | None = None) -> list[ZoneRun]:
        """Run the loop once in a zone, or in all of them one after the other."""
        config = self.config or current_config(failover_requirements())
        return [
            reconcile_zone(
                zone,
                request_id=new_global_request_id(),
                config=config,
                chooser=self.scheduler,
                events=self.events,
                monitor=self.monitor,
            )
            for zone in ([az] if az is not None else failover_zones())
        ]

    def replan_vm(self, vm_uuid: str) -> Replan:
        """Give one VM what it lacks now."""
        return replan_vm(
            vm_uuid,
            request_id=new_global_request_id(),
            config=self.config,
            chooser=self.scheduler,
            events=self.events,
        )

    def reconcile_reservation(self, reservation_id: int) -> ValidationReport:
        """Validate one reservation; one that is gone, or of another kind, is passed over."""
        zone = (
            Reservation.objects.filter(pk=reservation_id, kind=ReservationKind.FAILOVER)
            .values_list("zone", flat=True)
            .first()
        )
        if zone is None:
            return ValidationReport()
        return validate_zone(
            zone,
            request_id=new_global_request_id(),
            reservation_ids=[reservation_id],
            events=self.events,
        )
