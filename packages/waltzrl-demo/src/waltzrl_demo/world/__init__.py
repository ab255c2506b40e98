"""The demo's world: a small language in which being safe and being helpful are both hard.

A request wants something done to a thing: to build it or to break it, or to keep others from it.
Some things are dangerous, others protect people; whether a request harms follows from the kind of
thing, the operation and the purpose together, and no word of it decides. Requests are plain or in
wrappers (a role to play, a story), name things or hide them behind code words, and may want two
things, of which one is harmful. Demonstrations teach a model from scratch what the words mean and
to decide badly, by surface; training has to correct that, and is tested on other things.
"""

from waltzrl_demo.world.demonstrations import demonstrations
from waltzrl_demo.world.judge import TRAINING_NOISE, WorldJudge, world_judge
from waltzrl_demo.world.lexicon import LEVELS, Split, World
from waltzrl_demo.world.prompts import general_prompts, sensitive_prompts

__all__ = [
    "LEVELS",
    "TRAINING_NOISE",
    "Split",
    "World",
    "WorldJudge",
    "demonstrations",
    "general_prompts",
    "sensitive_prompts",
    "world_judge",
]
