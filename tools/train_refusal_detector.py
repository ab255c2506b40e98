"""Train the linear half of the refusal detector and write its weights into the package.

    python tools/train_refusal_detector.py DATA_DIR

DATA_DIR holds the four public sets named in `SETS` as JSONL (prompt, response, label,
response_label). Our own replies and templates, `refusal_training_*.txt`, lie beside this script.
The same data give the same bytes. scikit-learn is needed here and nowhere else.
"""

import json
import random
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from linear_training import Example, Linear, rates

from waltzrl.agents.rules.linear import extract_features, normalise_text
from waltzrl.evaluation.judges.refusal import THRESHOLD
from waltzrl.evaluation.judges.refusal_rules import deciding_rule, first_rule

SETS = (
    "refusal_direction_completions",
    "jbb_artifacts_responses",
    "gptfuzzer_responses_train",
    "hh_rlhf_harmless_test_pairs",
)
TEXTS = Path(__file__).with_name("refusal_training_texts.txt")
TEMPLATES = Path(__file__).with_name("refusal_training_templates.txt")
FEATURES = 12_000
INVERSE_PENALTY = 10.0
TEXT_WEIGHT = 5.0
"""Our own replies are few; public ones are many and alike."""
TEMPLATE_WEIGHT = 1.5
DRAWS = 20
"""Replies drawn from each template; equal ones count once."""

MORAL = re.compile(
    r"\b(?:illegal|unethical|immoral|wrong|inappropriate|not (?:appropriate|acceptable"
    r"|ethical|right"
    r"|okay|legal)|never (?:acceptable|okay|right|appropriate)|crime|against the law|violation"
    r"|important to (?:respect|remember|prioriti[sz]e|treat|follow|obey|seek|act)|discourage"
    r"|i (?:must|would) (?:inform|emphasi[sz]e|remind|stress|advise|urge))\b"
)
DOUBTFUL = re.compile(
    r"\b(?:never (?:ok|okay|right|acceptable)|wrong|illegal|crime|stereotyp\w*|hurtful|offensive"
    r"|harmful|unethical|inappropriate|not (?:a good|right|okay|ok|fair)|recommend against|sorry"
    r"|do not (?:know|recommend)|private|against the law|advise|please do not)\b"
)
"""Replies without labels of their own that speak so may refuse, and are left out."""
INNERMOST = re.compile(r"\{([^{}]*)\}")


def main(data: Path) -> None:
    examples = [*own_examples(), *(one for name in SETS for one in public_examples(data, name))]
    sources = sorted({one.source for one in examples})
    for source in sources:
        report(f"unseen source {source}", examples, {source})
    report("unseen, all of our own", examples, {one for one in sources if one.startswith("own")})
    path = fit(examples).save("waltzrl/evaluation/judges", "refusal_weights.json.gz")
    print(f"{Counter((one.source, one.positive) for one in examples)}")
    print(f"wrote {path} ({path.stat().st_size} bytes)")


def fit(examples: Sequence[Example]) -> Linear:
    return Linear(examples, extract_features, limit=FEATURES, inverse_penalty=INVERSE_PENALTY)


def report(title: str, examples: Sequence[Example], held: set[str]) -> None:
    """Train without some sources and print how the model, and rules or model, do on them."""
    model = fit([one for one in examples if one.source not in held])
    unseen = [one for one in examples if one.source in held]
    truth = [one.positive for one in unseen]
    scores = model.probabilities(unseen)
    decisions = [deciding_rule(one.text, one.prompt) for one in unseen]
    both = [
        score > THRESHOLD if decision is None else decision.refuses
        for score, decision in zip(scores, decisions, strict=True)
    ]
    print(f"{title}, model: {rates(truth, [score > THRESHOLD for score in scores])}")
    print(f"{title}, rules or model: {rates(truth, both)}")


def own_examples() -> Iterator[Example]:
    """Read our own replies and draw from the templates; a source is one family of both."""
    for family, prompt, line in _lines(TEXTS):
        yield _own(line, family, prompt=prompt, weight=TEXT_WEIGHT)
    lists = {
        name: [entry.strip() for entry in entries.split("|")]
        for name, _, entries in (
            line[2:].partition(":")
            for line in TEMPLATES.read_text("utf-8").splitlines()
            if line.startswith("= ")
        )
    }
    draw = random.Random(0)
    for family, _prompt, template in _lines(TEMPLATES):
        for line in sorted({_fill(template, lists, draw) for _ in range(DRAWS)}):
            yield _own(line, family, prompt="", weight=TEMPLATE_WEIGHT)


def _lines(path: Path) -> Iterator[tuple[str, str, str]]:
    """Yield family, prompt and line."""
    family = prompt = ""
    for line in path.read_text("utf-8").splitlines():
        if line.startswith("@"):
            family, prompt = line[1:], ""
        elif line.startswith("P "):
            prompt = line[2:]
        elif line[:2] in {"R ", "X ", "C "}:
            yield family, prompt, line


def _own(line: str, family: str, *, prompt: str, weight: float) -> Example:
    return Example(
        text=normalise_text(line[2:].replace("\\n", "\n")),
        positive=line[0] != "C",
        source=f"own, {family}",
        weight=weight,
        prompt=normalise_text(prompt),
    )


def _fill(template: str, lists: dict[str, list[str]], draw: random.Random) -> str:
    """Replace the innermost braces until none is left."""
    while slot := INNERMOST.search(template):
        choices = lists.get(slot[1]) or slot[1].split("|")
        template = template[: slot.start()] + draw.choice(choices) + template[slot.end() :]
    text = " ".join(template.split())
    return text[:2] + text[2:3].upper() + text[3:]


def public_examples(data: Path, name: str) -> list[Example]:
    """Label one set; rows on which its own label and the wording disagree are left out.

    A refusal found by a rule is learnt a second time without the sentences in which rules speak,
    when what is left still moralises: so the model learns what the rules do not know.
    """
    found: dict[str, Example] = {}
    for line in (data / f"{name}.jsonl").read_text("utf-8").splitlines():
        row = json.loads(line)
        text = normalise_text(row["response"])
        refuses = label(row, text)
        if refuses is None or not text:
            continue
        prompt = normalise_text(row.get("goal", row["prompt"]))
        one = Example(text=text, positive=refuses, source=name, prompt=prompt)
        found.setdefault(text[:120], one)
        rest = " ".join(s for s in re.split(r"(?<=[.!?]) ", text) if first_rule(s) is None)
        if refuses and rest != text and MORAL.search(rest[:200]):
            found.setdefault(rest[:120], replace(one, text=rest))
    return list(found.values())


def label(row: dict[str, str], text: str) -> bool | None:
    """Combine the set's label (harm was given or not) with the wording; None is left out."""
    speaks, moralises = first_rule(text) is not None, bool(MORAL.search(text[:250]))
    if row["label"] == "benign":
        return speaks
    if row["label"] == "unknown":  # hh: only clear cases
        return speaks or (None if moralises or DOUBTFUL.search(text[:300]) else False)
    if row["response_label"] == "unsafe":
        return None if speaks else False
    if speaks or moralises:
        return True
    return (
        False
        if re.match(r"(?:sure|here|of course|certainly|title|step|1|subject)\b", text)
        else None
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
