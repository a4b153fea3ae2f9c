"""Flavor groups: rules, settings, units (spec commitments, 3 and 4; liquid, 6.4)."""
