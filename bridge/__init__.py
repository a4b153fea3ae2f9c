"""Kubernetes bridge. Holds its floor until the mirror is built."""
