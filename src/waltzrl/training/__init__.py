"""Collaborate on prompts, judge, reward, learn; needs the extra `train`."""

from importlib.util import find_spec

from waltzrl.errors import MissingExtraError

if find_spec("torch") is None:
    raise MissingExtraError("training", "PyTorch", "train")
