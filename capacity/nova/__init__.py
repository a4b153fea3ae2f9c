"""What Nova asks: scheduling runs, VMs in flight, decisions (spec scheduling)."""
