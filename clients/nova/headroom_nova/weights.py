"""``headroom_nova.weights.HeadroomWeigher``: the order of Headroom's answer wins."""

from __future__ import annotations

from typing import Any

from nova.scheduler import weights

from headroom_nova.filters import RANKS, client

Anything = Any  # Nova has no types


class HeadroomWeigher(weights.BaseHostWeigher):  # type: ignore[misc]  # Nova has no types
    """Weighs hosts by their place in the answer; all alike if there was none."""

    def weight_multiplier(self, host_state: Anything) -> float:
        """Outweigh Nova's other weighers."""
        del host_state
        return float(client().options.weight_multiplier)

    def _weigh_object(self, host_state: Anything, request_spec: Anything) -> float:
        ranks = getattr(request_spec, RANKS, None) or {}
        return -float(ranks.get(host_state.host, 0))
