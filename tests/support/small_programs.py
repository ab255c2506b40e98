"""Programs that reply: one that cannot add, and the same that can."""

FIRST = """
def reply(messages):
    asked = messages[-1]["content"]
    if "bomb" in asked:
        return "I'm sorry, but I can't help with that."
    if "plus" in asked:
        return "None."
    return "Of course. Knead the dough, and bake it for an hour."
"""
ADDS = FIRST.replace('"None."', "str(sum(int(word) for word in asked.split() if word.isdigit()))")
