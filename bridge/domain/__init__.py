"""Pure rules of the mirror: rows become objects, objects become digests. No ORM, no Kubernetes."""
