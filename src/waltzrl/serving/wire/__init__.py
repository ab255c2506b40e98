"""The APIs that the gateway speaks, each an adapter between bytes and an `Exchange`."""
