"""One database for all replicas: connections, migrations and change notices."""
