"""Collaborate on prompts, judge, reward, learn; all but the rewards needs the extra `train`."""
