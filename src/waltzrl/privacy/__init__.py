"""Personal data and secrets: found, checked, and taken out before anything is kept."""
