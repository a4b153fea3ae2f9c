"""What the ``openstack`` client looks for in a plug-in."""

from __future__ import annotations

import argparse
from typing import Any

from keystoneauth1.adapter import Adapter
from osc_lib import utils

from headroom_osc.client import Capacity

API_NAME = "capacity"
API_VERSION_OPTION = "os_capacity_api_version"
API_VERSIONS = {"1": "headroom_osc.client.Capacity"}
DEFAULT_API_VERSION = "1"


def make_client(instance: Any) -> Capacity:  # Any: the client's manager, which has no types
    """Return a client for the endpoint that was named, or else for that of the catalogue."""
    adapter = Adapter(
        session=instance.session,
        service_type=API_NAME,
        interface=instance.interface,
        region_name=instance.region_name,
        endpoint_override=instance._cli_options.get_endpoint(API_NAME),  # noqa: SLF001 - as all do
    )
    return Capacity(adapter)


def build_option_parser(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Add the options that stand before the command."""
    parser.add_argument(
        "--os-capacity-api-version",
        metavar="<version>",
        default=utils.env("OS_CAPACITY_API_VERSION", default=DEFAULT_API_VERSION),
        help="Version of Headroom's API (env: OS_CAPACITY_API_VERSION)",
    )
    parser.add_argument(
        "--capacity-endpoint",
        metavar="<url>",
        default=utils.env("OS_CAPACITY_ENDPOINT"),
        help="Where Headroom is, if the catalogue does not say so (env: OS_CAPACITY_ENDPOINT)",
    )
    return parser
