"""Pure parts of Placement: no Django, no clock, no clients."""
