"""HTTP endpoints of ``capacity``: the external scheduler of Nova, and explanations."""
