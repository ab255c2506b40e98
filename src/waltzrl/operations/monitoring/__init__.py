"""Dashboards and alerts for the metrics of a gateway."""
