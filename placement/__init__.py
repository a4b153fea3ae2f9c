"""The Placement-compatible API over tables and algorithms of our own."""
