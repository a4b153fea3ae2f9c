"""What can still be sold of each flavor group in each zone, what limits it, and what if."""
