"""What exists: hosts, VMs, flavors, projects, and how they are read in."""
