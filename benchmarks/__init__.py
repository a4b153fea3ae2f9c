"""Benchmarks: ``./run bench NAME [--quick]``. Speed lives here, never in tests."""
