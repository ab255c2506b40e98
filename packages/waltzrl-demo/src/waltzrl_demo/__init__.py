"""WaltzRL in miniature, on a CPU, in minutes."""
