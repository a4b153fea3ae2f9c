"""GPUs of a host: what there is, what is free, how one is taken (spec hosts, A.11)."""
