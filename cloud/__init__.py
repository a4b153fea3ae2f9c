"""``./run cloud``: a real small OpenStack on this machine, with Headroom as its Placement.

Keystone, Glance, Neutron and Nova are the real ones, MariaDB and RabbitMQ instances of our own; the
hypervisors are pretended by a driver of Nova. What runs inside their environment is in ``inside/``.
"""
