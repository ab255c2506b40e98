"""What every package stands on: settings and their sources, files, logs, metrics, the terminal."""
