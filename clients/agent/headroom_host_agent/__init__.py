"""What runs on a host: what it has, what is on it, what it does for Headroom."""
