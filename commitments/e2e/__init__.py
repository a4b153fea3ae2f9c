"""End-to-end checks of a running LIQUID server over HTTP (spec liquid, 17; commitments, 23)."""
