"""What projects hold, use and leave idle."""
