"""``POST /api/v1/hosts/NAME/evict``: slots of a host in maintenance go elsewhere."""

from __future__ import annotations

from commitments.services.evicting import evict_slots
from hosts.agents.order_views import HostOrderView, Order
from journal.clock import database_now
from journal.middleware import request_id_of


class EvictView(HostOrderView[Order]):
    """Moves what has no VMs, and says what is left."""

    path_label = "/api/v1/hosts/{name}/evict"
    is_task = True
    asks = Order

    def order(self, name: str, asked: Order) -> dict[str, object]:
        """Carry it out."""
        found = evict_slots(
            name,
            now=database_now(),
            actor=self.actor,
            request_id=request_id_of(self.http_request),
            reason=asked.reason,
        )
        return {
            "slots_moved": found.moved,
            "slots_without_place": found.without_place,
            "slots_with_vms": found.with_vms,
            "vms": found.vms,
            "vms_memory_bytes": found.vms_memory_bytes,
        }
