"""What a host has and gives away: detection, oversubscription, admission (spec hosts, part A)."""
