"""Where prompts come from, and the gate that keeps test prompts out of training."""
