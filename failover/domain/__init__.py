"""The pure core of failover: rules, engine, planners. No Django, no clock, no I/O."""
