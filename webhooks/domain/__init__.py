"""What a delivery says and when it is tried again: pure."""
