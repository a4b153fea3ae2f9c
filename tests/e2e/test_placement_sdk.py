"""The Placement proxy of openstacksdk, unchanged, against a served Headroom."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import openstack
import pytest
from openstack.exceptions import ConflictException, NotFoundException

from config.launcher.demo import ADDRESS
from tests.e2e.placement_peers import MOUNT, TOKEN
from tests.e2e.processes import ALONE, OPEN, WebServer

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.e2e]


@pytest.fixture
def placement(transactional_db: None, tmp_path: Path) -> Iterator[Any]:
    """The proxy of a cloud whose Placement is ours."""
    del transactional_db
    web = WebServer(directory=tmp_path, overrides={**OPEN, **ALONE})
    web.start()
    address = f"http://{ADDRESS}:{web.port}{MOUNT}"
    cloud = openstack.connection.Connection(
        auth_type="admin_token",
        auth={"endpoint": address, "token": TOKEN},
        placement_endpoint_override=address,
        placement_default_microversion="1.39",
    )
    yield cloud.placement
    cloud.close()
    web.kill()


def test_a_provider_lives_its_life_through_the_proxy(placement: Any) -> None:
    host = placement.create_resource_provider(name="host", uuid=str(uuid4()))
    child = placement.create_resource_provider(name="cell", parent_provider_id=host.id)

    assert placement.get_resource_provider(host.id).name == "host"
    assert placement.find_resource_provider("cell").parent_provider_id == host.id
    listed = {row.name for row in placement.resource_providers(in_tree=host.id)}
    assert listed == {"host", "cell"}
    renamed = placement.update_resource_provider(child, name="cell-0")
    assert placement.get_resource_provider(child.id).name == renamed.name == "cell-0"
    with pytest.raises(ConflictException):
        placement.delete_resource_provider(host)
    placement.delete_resource_provider(child)
    placement.delete_resource_provider(host)
    with pytest.raises(NotFoundException):
        placement.get_resource_provider(host.id)


def test_inventories_aggregates_traits_and_classes_through_the_proxy(placement: Any) -> None:
    host = placement.create_resource_provider(name="host")

    custom = placement.create_resource_class(name="CUSTOM_GOLD")
    assert placement.get_resource_class("CUSTOM_GOLD").name == custom.name
    assert {"VCPU", "CUSTOM_GOLD"} <= {row.name for row in placement.resource_classes()}
    inventory = placement.create_resource_provider_inventory(host, custom, total=8)
    assert inventory.total == 8
    inventory = placement.update_resource_provider_inventory(
        inventory, host, total=16, resource_provider_generation=1
    )
    assert placement.get_resource_provider_inventory(inventory, host).total == 16
    assert [row.total for row in placement.resource_provider_inventories(host)] == [16]
    aggregate = str(uuid4())
    host = placement.get_resource_provider(host.id)
    host = placement.set_resource_provider_aggregates(host, aggregate)
    assert placement.fetch_resource_provider_aggregates(host).aggregates == [aggregate]
    trait = placement.create_trait("CUSTOM_FAST")
    assert placement.get_trait(trait).name == "CUSTOM_FAST"
    assert "CUSTOM_FAST" in {row.name for row in placement.traits(name="startswith:CUSTOM")}
    placement.delete_trait(trait)
    placement.delete_resource_provider_inventory(inventory, host)
    placement.delete_resource_class(custom)
    assert list(placement.resource_provider_inventories(host)) == []
