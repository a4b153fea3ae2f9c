"""Names beside the ids of other systems, read in the statement of the rows."""

from __future__ import annotations

from django.db.models import OuterRef, Subquery

from hosts.models import Domain, Instance, Project


def project_name(column: str = "project_id") -> Subquery:
    """Return the name of the project whose id is in a column."""
    found = Project.objects.filter(openstack_id=OuterRef(column))
    return Subquery(found.order_by().values("name")[:1])


def domain_name(column: str = "domain_id") -> Subquery:
    """Return the name of the domain whose id is in a column."""
    found = Domain.objects.filter(openstack_id=OuterRef(column))
    return Subquery(found.order_by().values("name")[:1])


def vm_name(column: str = "vm_uuid") -> Subquery:
    """Return the name of the VM whose uuid is in a column."""
    found = Instance.objects.filter(openstack_id=OuterRef(column))
    return Subquery(found.order_by().values("name")[:1])
