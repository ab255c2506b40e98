"""Tasks of `builder`: the description of a function becomes Python, which is run against tests."""

from dataclasses import dataclass

from facts import Facts


@dataclass(frozen=True, slots=True)
class Pattern:
    """A function that is often needed, with names to fill in."""

    name: str
    wordings: tuple[str, ...]
    body: str
    """The function's lines."""
    tests: tuple[str, ...]
    """Expressions that are true; `F` is the function."""


PATTERNS = (
    Pattern(
        "total_{key}_of_{state}",
        (
            "adds up the {key} of all {word} whose {label} is {state}",
            "returns the sum of {key} over those {word} that have {label} {state}",
        ),
        'return sum(x["{key}"] for x in {word} if x["{label}"] == "{state}")',
        (
            'F([{{"{key}": 4, "{label}": "{state}"}}, {{"{key}": 3, "{label}": "-"}},'
            ' {{"{key}": 5, "{label}": "{state}"}}]) == 9',
            "F([]) == 0",
        ),
    ),
    Pattern(
        "{word}_above_{limit}",
        (
            "returns the {word} whose {key} is greater than {limit}",
            "keeps only {word} with a {key} above {limit}",
        ),
        'return [x for x in {word} if x["{key}"] > {limit}]',
        (
            'F([{{"{key}": {limit} + 1}}, {{"{key}": {limit}}}]) == [{{"{key}": {limit} + 1}}]',
            "F([]) == []",
        ),
    ),
    Pattern(
        "count_by_{label}",
        (
            "counts the {word} for each {label} and returns a dict",
            "returns a dict with the number of {word} per {label}",
        ),
        "counts = {{}}\n"
        "for x in {word}:\n"
        '    counts[x["{label}"]] = counts.get(x["{label}"], 0) + 1\n'
        "return counts",
        (
            'F([{{"{label}": "a"}}, {{"{label}": "b"}}, {{"{label}": "a"}}])'
            ' == {{"a": 2, "b": 1}}',
            "F([]) == {{}}",
        ),
    ),
    Pattern(
        "group_by_{label}",
        (
            "groups the {word} by {label}: a dict from {label} to a list",
            "returns a dict with the list of {word} for each {label}",
        ),
        "groups = {{}}\n"
        "for x in {word}:\n"
        '    groups.setdefault(x["{label}"], []).append(x)\n'
        "return groups",
        (
            'F([{{"{label}": "a"}}, {{"{label}": "b"}}])'
            ' == {{"a": [{{"{label}": "a"}}], "b": [{{"{label}": "b"}}]}}',
        ),
    ),
    Pattern(
        "sort_by_{key}",
        (
            "sorts the {word} by {key}, largest first",
            "returns the {word} in descending order of {key}",
        ),
        'return sorted({word}, key=lambda x: x["{key}"], reverse=True)',
        (
            '[x["{key}"] for x in F([{{"{key}": 2}}, {{"{key}": 7}}, {{"{key}": 5}}])]'
            " == [7, 5, 2]",
        ),
    ),
    Pattern(
        "largest_{key}",
        (
            "returns the largest {key} of the {word}, or 0 if there are none",
            "finds the maximum {key} among {word}; without any it returns 0",
        ),
        'return max((x["{key}"] for x in {word}), default=0)',
        ('F([{{"{key}": 2}}, {{"{key}": 7}}]) == 7', "F([]) == 0"),
    ),
    Pattern(
        "mean_{key}",
        (
            "returns the mean {key} of the {word}, or None if there are none",
            "averages the {key} over all {word}; without any it returns None",
        ),
        "if not {word}:\n"
        "    return None\n"
        'return sum(x["{key}"] for x in {word}) / len({word})',
        ('F([{{"{key}": 2}}, {{"{key}": 7}}]) == 4.5', "F([]) is None"),
    ),
    Pattern(
        "clamp_{key}",
        (
            "returns {key}, but never less than 0 and never more than {limit}",
            "limits {key} to the range from 0 to {limit}",
        ),
        "return max(0, min({key}, {limit}))",
        ("F(-5) == 0", "F({limit} + 9) == {limit}", "F(1) == 1"),
    ),
    Pattern(
        "{word}_in_chunks",
        (
            "splits the list {word} into lists of {limit} items",
            "cuts the list {word} into chunks of size {limit}",
        ),
        "return [{word}[i:i + {limit}] for i in range(0, len({word}), {limit})]",
        ("F(list(range({limit} + 1))) == [list(range({limit})), [{limit}]]", "F([]) == []"),
    ),
    Pattern(
        "unique_{word}",
        (
            "removes repeated {word} and keeps their order",
            "returns the list {word} without duplicates, in the same order",
        ),
        "return list(dict.fromkeys({word}))",
        ("F([3, 1, 3, 2, 1]) == [3, 1, 2]", "F([]) == []"),
    ),
    Pattern(
        "rename_{key}",
        (
            'returns the {word} with the field "{key}" renamed to "{label}"',
            'renames "{key}" to "{label}" in each of the {word}',
        ),
        'return [{{"{label}" if k == "{key}" else k: v for k, v in x.items()}} for x in {word}]',
        ('F([{{"{key}": 1, "z": 2}}]) == [{{"{label}": 1, "z": 2}}]',),
    ),
    Pattern(
        "find_{state}",
        (
            "returns the first of the {word} whose {label} is {state}, or None",
            "finds the first item of {word} that has {label} {state}; otherwise returns None",
        ),
        "for x in {word}:\n"
        '    if x["{label}"] == "{state}":\n'
        "        return x\n"
        "return None",
        ('F([{{"{label}": "-"}}, {{"{label}": "{state}"}}])["{label}"] == "{state}"',
         "F([]) is None"),
    ),
)  # fmt: skip
PROMPTS = (
    "Write `{name}({argument})`, which {what}.",
    "I need a function {name}({argument}) that {what}.",
    "Python, please: `{name}({argument})` {what}.",
    "Function {name}, argument {argument}: it {what}.",
)


def make_function(facts: Facts) -> dict[str, object]:
    """Return a task: a pattern with names of its own, and tests of what it returns."""
    pattern = PATTERNS[int(facts.vary([str(n) for n in range(len(PATTERNS))]))]
    known = {name: facts.draw(name) for name in ("word", "key", "label", "state", "limit")}
    name = pattern.name.format(**known)
    argument = known["key"] if pattern.name == "clamp_{key}" else known["word"]
    prompt = facts.vary(PROMPTS).format(
        name=name, argument=argument, what=facts.vary(pattern.wordings).format(**known)
    )
    body = pattern.body.format(**known).replace("\n", "\n    ")
    return {
        "prompt": prompt,
        "completion": f"def {name}({argument}):\n    {body}",
        "checks": {
            "tests": [test.format(**known).replace("F(", f"{name}(") for test in pattern.tests]
        },
    }
