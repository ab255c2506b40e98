"""What was served, as trajectories, statistics and prompts to learn from."""
