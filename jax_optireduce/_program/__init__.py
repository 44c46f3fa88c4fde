"""A call in a traced program: checks, buckets, names, primitives and lowering."""
