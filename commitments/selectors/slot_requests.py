"""What a request for a slot's host is judged by besides its size (spec commitments, 9.5)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import structlog
from django.conf import settings

from capacity.services.pipelines import active_pipelines
from commitments.domain.placing import DomainHint
from hosts.models import Domain
from scheduling.engine import Pipeline

log = structlog.get_logger(__name__)

EVERY_GROUP = "*"


def domain_hints(domain_ids: Iterable[str]) -> dict[str, DomainHint]:
    """Return what is known of domains, by id; one that is not listed counts as unresolved."""
    wanted = {domain_id for domain_id in domain_ids if domain_id}
    if not wanted:
        return {}
    names = dict(Domain.objects.filter(openstack_id__in=wanted).values_list("openstack_id", "name"))
    return {
        domain_id: DomainHint(name=names.get(domain_id), is_unresolved=domain_id not in names)
        for domain_id in sorted(wanted)
    }


def slot_pipelines(groups: Collection[str]) -> Mapping[str, Pipeline]:
    """Return the pipelines that judge slots of flavor groups, where the operator chose one.

    A name that no usable pipeline has is logged, and the pipeline of slots is used.
    """
    chosen = settings.HEADROOM.slots.group_pipelines
    if not chosen:
        return {}
    usable = active_pipelines()
    found: dict[str, Pipeline] = {}
    for group in sorted(groups):
        name = chosen.get(group, chosen.get(EVERY_GROUP, ""))
        if name in usable:
            found[group] = usable[name].pipeline
        elif name:
            log.error("slot_pipeline_unknown", group=group, pipeline=name)
    return found
