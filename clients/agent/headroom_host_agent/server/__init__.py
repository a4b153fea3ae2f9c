"""Speaking to Headroom: who this agent is, signed requests, reports."""
