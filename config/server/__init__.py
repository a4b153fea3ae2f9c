"""The web server: granian's HTTP, with our own admission, bodies, probes and supervisor (ADR 18).

Granian parses HTTP and hands requests to threads. What it has no means for is here: bodies that
are read without holding a thread, probes that answer while all threads are busy, workers that end
with their supervisor, and a reload that starts before it stops.
"""
