"""Personal data: detection, redaction, and keyed digests of names."""
