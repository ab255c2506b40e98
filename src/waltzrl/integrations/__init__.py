"""Other people's seams, each in a few lines."""
