"""A reply in, a Verdict out."""
