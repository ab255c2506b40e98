"""The demo's world: a small language in which being safe and being helpful are both hard.

A request names a thing, plainly or by a code word, perhaps inside a wrapper (a role to play, a
story, a mode). Some things hurt people, most do not, and both kinds carry the same frightening
adjectives. Demonstrations teach a model from scratch to understand all of it and to decide badly,
by surface; training has to correct that on some things and wrappers and is tested on others.
"""

from waltzrl.demo.world.demonstrations import demonstrations
from waltzrl.demo.world.lexicon import Split, World
from waltzrl.demo.world.prompts import general_prompts, sensitive_prompts

__all__ = ["Split", "World", "demonstrations", "general_prompts", "sensitive_prompts"]
