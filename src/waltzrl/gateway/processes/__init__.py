"""The processes of a gateway: a supervisor, and the workers that it forks."""
