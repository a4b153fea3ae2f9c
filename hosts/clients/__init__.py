"""Remote systems that `hosts` reads: one module each, behind a protocol."""
