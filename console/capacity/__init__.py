"""Pages of capacity: hosts with their room, flavor groups, pipelines, reservations, decisions."""
