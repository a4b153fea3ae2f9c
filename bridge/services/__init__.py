"""What the bridge does, each step a transaction that may be cut off anywhere."""
