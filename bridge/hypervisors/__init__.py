"""Hypervisor objects of Kubernetes, read into hosts (docs/hypervisors.md)."""
