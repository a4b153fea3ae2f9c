"""The LIQUID API that Limes calls (spec liquid)."""
