"""Headroom's commands of the ``openstack`` command line client."""
