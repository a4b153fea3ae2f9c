"""Kubernetes: rows shown as objects in clusters, Hypervisor objects read from one."""
