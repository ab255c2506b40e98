"""Train the agents: collaborate on prompts, judge, reward, learn.

`rewards`, `settings` and `recipe` need no PyTorch; every other module needs the extra `train`.
"""
