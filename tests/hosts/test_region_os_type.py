"""What a server runs, as its image tells it (spec liquid, 9.3), over a whole import."""

from __future__ import annotations

from pathlib import Path

import pytest

from hosts.models import Instance

from .region_files import load, small_region, write_file

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.parametrize(
    ("image", "os_type"),
    [
        pytest.param({"id": "i1"}, "sles", id="image with os_distro"),
        pytest.param("i1", "sles", id="image as text"),
        pytest.param({"id": "i2"}, "sles15_64Guest", id="vmware_ostype before os_distro"),
        pytest.param({"id": "i3"}, "rhel9", id="tag"),
        pytest.param({"id": "i4"}, "unknown", id="image that does not say"),
        pytest.param({"id": "gone"}, "image-deleted", id="image is gone"),
        pytest.param("", "unknown", id="booted from a volume"),
    ],
)
def test_os_type_of_a_server_is_that_of_its_image(
    tmp_path: Path, image: object, os_type: str
) -> None:
    region = small_region()
    region["image"]["images"] += [
        {"id": "i2", "name": "2", "os_distro": "sles", "vmware_ostype": "sles15_64Guest"},
        {"id": "i3", "name": "3", "tags": ["x", "ostype:rhel9"], "vmware_ostype": "not valid!"},
        {"id": "i4", "name": "4"},
    ]
    region["compute"]["servers"][0]["image"] = image
    load(write_file(tmp_path, region))
    assert Instance.objects.get().os_type == os_type
