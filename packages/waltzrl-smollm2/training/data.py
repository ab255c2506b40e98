"""The public sets that the reviewer learns from and is measured on, as labelled exchanges.

A set has one role: `train`, `validate` (thresholds and choices) or `test` (the table of the card).
The roles were fixed before anything was measured. Near duplicates of a test or validation request
leave the training rows.
"""

import csv
import hashlib
import json
import random
import re
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from waltzrl.errors import InputError
from waltzrl.evaluation.data.duplicates import leaks
from waltzrl.records import Message, Prompt

HERE = Path(__file__).parent
OUR_TESTS = HERE.parents[2] / "tests" / "agents"
"""Sets of this project that its rules are tested with."""
Role = Literal["train", "validate", "test"]
Line = dict[str, str]
WRAPPED = 0.2
"""The share of training requests in a jailbreak's text."""
TEXTS = tomllib.loads((HERE / "replies.toml").read_text("utf-8"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """A request, a reply, and what is known of them; None where the set does not say."""

    source: str
    request: str
    reply: str = ""
    """Empty for a prompt without a reply of its own."""
    harmful: bool | None = None
    unsafe: bool | None = None
    refuses: bool | None = None
    goal: str = ""
    """What the request asks for without a jailbreak's text around it: compared for leaks."""

    @property
    def asked(self) -> str:
        return self.goal or self.request


@dataclass(frozen=True, slots=True)
class PublicSet:
    """How a file of a public set is used."""

    role: Role
    limit: int
    licence: str
    keeps: Callable[[Line], bool] = lambda _: True


def _of(*categories: str) -> Callable[[Line], bool]:
    return lambda line: line["category"] in categories


def _from(*sources: str) -> Callable[[Line], bool]:
    return lambda line: line["source"] in sources


def _share(low: int, high: int, *categories: str) -> Callable[[Line], bool]:
    """Keep these percents of the requests, with all their replies, of some categories or of all."""
    return lambda line: (
        low <= _number(line["prompt"]) % 100 < high
        and (not categories or line["category"] in categories)
    )


ADVICE = (
    "Financial Advice",
    "Gov Decision",
    "Health Consultation",
    "Legal Opinion",
    "Political Lobbying",
)
"""Categories of do-anything-now's questions that a policy forbids and nobody is harmed by."""


PROMPTS: dict[str, list[PublicSet]] = {
    "guardreasoner5k_prompts": [
        PublicSet("train", 3400, "ODC-BY (WildGuardMix)", _share(10, 100, "WildGuardTrainR")),
        PublicSet("validate", 400, "ODC-BY (WildGuardMix)", _share(0, 10, "WildGuardTrainR")),
        PublicSet("test", 300, "CC-BY-4.0 (Aegis)", _of("AegisTrainR")),
        PublicSet("test", 500, "CC-BY-NC-4.0 (ToxicChat)", _of("ToxicChatTrainR")),
    ],
    "red_instruct_harmful_questions": [
        PublicSet("train", 1200, "Apache-2.0", _from("harmfulqa", "adversarialqa", "dangerousqa")),
        PublicSet("validate", 150, "Apache-2.0", _from("catqa_english")),
    ],
    "advbench": [PublicSet("train", 520, "MIT")],
    "malicious_instruct_tdc2023": [PublicSet("train", 200, "MIT")],
    "trustllm_misuse": [
        PublicSet("train", 900, "MIT", lambda line: line["category"] not in ADVICE)
    ],
    "gsm8k_train": [PublicSet("train", 200, "MIT")],
    "mmlu_1000": [
        PublicSet("train", 500, "MIT", _share(20, 100)),
        PublicSet("validate", 150, "MIT", _share(0, 20)),
    ],
    "coconot_eval": [PublicSet("validate", 400, "ODC-BY")],
    "coconot_contrast_eval": [PublicSet("validate", 300, "ODC-BY")],
    "jailbreakbench_behaviors": [PublicSet("test", 200, "MIT")],
    "simplesafetytests": [PublicSet("test", 100, "CC-BY-4.0")],
    "oktest": [PublicSet("test", 250, "none stated")],
    "do_not_answer": [PublicSet("test", 200, "CC-BY-NC-SA-4.0")],
    "alert_prompts": [PublicSet("test", 200, "CC-BY-NC-SA-4.0")],
    "alpaca_instructions": [PublicSet("test", 200, "CC-BY-NC-4.0")],
    "truthfulqa_mc_817": [PublicSet("test", 200, "Apache-2.0")],
    "gsm8k_test": [PublicSet("test", 100, "MIT")],
    "xstest": [PublicSet("test", 450, "CC-BY-4.0")],
    "openai_moderation": [PublicSet("test", 1680, "MIT")],
    "cyberseceval_frr": [PublicSet("test", 750, "MIT")],
    "hate_tweets": [PublicSet("train", 2800, "MIT")],
}
REPLIES: dict[str, list[PublicSet]] = {
    "gptfuzzer_responses_train": [
        PublicSet("train", 1200, "MIT", _share(0, 65)),
        PublicSet("validate", 100, "MIT", _share(65, 80)),
        PublicSet("test", 150, "MIT", _share(80, 100)),
    ],
    "gpteacher_roleplay": [
        PublicSet("train", 800, "MIT", _share(10, 100)),
        PublicSet("validate", 100, "MIT", _share(0, 10)),
    ],
    "gpteacher_codegen": [
        PublicSet("train", 500, "MIT", _share(10, 100)),
        PublicSet("validate", 100, "MIT", _share(0, 10)),
    ],
    "coconot_pref": [PublicSet("train", 927, "ODC-BY")],
    "diasafety": [
        PublicSet("train", 4000, "Apache-2.0", _share(5, 100)),
        PublicSet("validate", 200, "Apache-2.0", _share(0, 5)),
    ],
    "user_oriented": [PublicSet("train", 252, "Apache-2.0")],
    "jbb_artifacts_responses": [PublicSet("test", 150, "MIT")],
    "refusal_direction_completions": [PublicSet("test", 150, "Apache-2.0")],
    "pku_saferlhf_pairs": [PublicSet("test", 150, "CC-BY-NC-4.0")],
    "safety_tuned_llamas_sft": [PublicSet("test", 100, "CC-BY-NC-4.0")],
    "alpaca_gpt4_demo_sft": [PublicSet("test", 100, "CC-BY-NC-4.0")],
}
OPTIONAL: dict[str, list[PublicSet]] = {
    "or_bench_hard": [PublicSet("test", 1319, "CC-BY-4.0")],
    "hatecheck": [PublicSet("train", 2600, "CC-BY-4.0")],
    "convabuse": [PublicSet("train", 1600, "CC-BY-4.0")],
}
"""Prompts that are used where the folder holds them, by no weights that ship."""
TEMPLATES: dict[Role, str] = {
    "train": "inthewild_jailbreak_templates",
    "test": "gptfuzzer_templates",
}


def exchanges(data: Path) -> dict[Role, list[Exchange]]:
    """Read every set.

    Args:
        data: folder with the files named above, as JSON Lines.

    Returns:
        The exchanges of each role, in an order that is random but fixed. Requests of the training
        rows are not nearly those of others.

    Raises:
        InputError: files are missing; names all.
    """
    _require_files(data)
    found: dict[Role, list[Exchange]] = {"train": [], "validate": [], "test": []}
    at_hand = {name: sets for name, sets in OPTIONAL.items() if _file(data, name).exists()}
    for name, parts in (PROMPTS | at_hand | REPLIES).items():
        lines = _lines(data, name)
        for part in parts:
            kept = sorted(filter(part.keeps, lines), key=_hash)[: part.limit]
            found[part.role].extend(_exchange(name, line) for line in kept)
    for exchange in _contrast():
        found["validate" if _number(exchange.request) % 5 == 0 else "train"].append(exchange)
    for family, exchange in _written():
        found["validate" if _number(family) % 5 == 0 else "train"].append(exchange)
    found["train"].extend(_crisis())
    for role, exchange in _our_tests():
        found[role].append(exchange)
    found["test"].extend(_wrapped_test(data, found["test"]))
    held_out = found["test"]
    for role in ("validate", "train"):
        leaked = _leaked(found[role], held_out)
        found[role] = [one for one in found[role] if one.asked not in leaked]
        held_out = [*held_out, *found[role]]
    return {
        role: sorted(rows, key=lambda one: _number(one.request + one.reply))
        for role, rows in found.items()
    }


def _leaked(exchanges: Sequence[Exchange], held_out: Sequence[Exchange]) -> set[str]:
    """Name the requests that are nearly one of those held out."""
    requests, kept_back = (
        {one.asked: _prompt(one) for one in rows} for rows in (exchanges, held_out)
    )
    return {leak.test.request for leak in leaks(list(kept_back.values()), list(requests.values()))}


def _exchange(name: str, line: Line) -> Exchange:
    source = {
        "AegisTrainR": "aegis",
        "ToxicChatTrainR": "toxicchat",
        "WildGuardTrainR": "wildguardmix",
    }.get(line.get("category", ""), name)
    request, reply = line.get("prompt", line.get("instruction", "")), line.get("response", "")
    if name == "coconot_eval":
        harmful = line["category"] == "Requests with safety concerns"
        return Exchange(source=name, request=request, harmful=harmful)
    if name == "coconot_contrast_eval":
        return Exchange(source=name, request=request, harmful=False)
    if name in ("coconot_pref", "user_oriented"):
        return _good_answer(name, request, line)
    if name == "diasafety":
        return Exchange(source=name, request=request, reply=reply, unsafe=line["label"] == "unsafe")
    label = {"unsafe": True, "benign": False}.get(line["label"])
    if name in REPLIES:
        unsafe = line.get("response_label") == "unsafe" and label is not False
        return Exchange(
            source=name,
            request=request,
            reply=reply,
            harmful=label,
            unsafe=unsafe,
            goal=line.get("goal", ""),
        )
    return Exchange(source=source, request=request, harmful=label)


def _good_answer(name: str, request: str, line: Line) -> Exchange:
    reply = line.get("chosen", "")
    if name == "user_oriented":
        [instance] = line["instances"]
        request, reply = f"{request}\n\n{instance['input']}".strip(), instance["output"]
    return Exchange(
        source=name, request=request, reply=reply, harmful=False, unsafe=False, refuses=False
    )


def _contrast() -> Iterator[Exchange]:
    for line in (HERE / "contrast.txt").read_text("utf-8").splitlines():
        if not line.startswith("#"):
            label, request = line.split("\t")
            yield Exchange(source="contrast", request=request, harmful=label == "unsafe")


def _written() -> Iterator[tuple[str, Exchange]]:
    """Yield what was written for this project in families, with the names of these."""
    for label, family, request in _rows("requests.tsv"):
        source = "everyday" if family.startswith("f-") else "boundary"
        yield family, Exchange(source=source, request=request, harmful=label == "unsafe")
    for harmful, unsafe, refuses, family, request, reply in _rows("replies.tsv"):
        yield (
            family,
            Exchange(
                source="written replies",
                request=request,
                reply=reply,
                harmful=harmful == "harmful",
                unsafe=unsafe == "unsafe",
                refuses=refuses == "refuses",
            ),
        )


def _rows(name: str) -> Iterator[list[str]]:
    for line in (HERE / name).read_text("utf-8").splitlines():
        if not line.startswith("#"):
            yield [cell.replace("\\n", "\n") for cell in line.split("\t")]


def _our_tests() -> Iterator[tuple[Role, Exchange]]:
    """Yield the pairs of replies to harmful requests, and the harmless questions, of our tests."""
    for line in _read(OUR_TESTS / "replies_to_harmful_requests.jsonl"):
        yield (
            "validate" if line["split"] == "development" else "test",
            Exchange(
                source="pairs of replies",
                request=line["request"],
                reply=line["reply"],
                harmful=True,
                unsafe=bool(line["complies"]),
            ),
        )
    for name in ("harmless_questions.jsonl", "harmless_questions_2.jsonl"):
        for line in _read(OUR_TESTS / name):
            yield "test", Exchange(source="harmless questions", request=line["text"], harmful=False)


def _crisis() -> Iterator[Exchange]:
    """People in a crisis: support is safe, and instructions are not."""
    said = TEXTS["crisis"]
    for number, request in enumerate(said["requests"]):
        for reply in said["supports"]:
            yield Exchange(source="crisis", request=request, reply=reply, unsafe=False)
        complies = TEXTS["complies"][number].format(request=request, topic="what you want")
        yield Exchange(source="crisis", request=request, reply=complies, unsafe=True, refuses=False)


def _wrapped_test(data: Path, test: Sequence[Exchange]) -> Iterator[Exchange]:
    """JailbreakBench's goals and benign requests in jailbreak templates.

    The requests are unknown to training, but 75 of the 77 templates are not: they are, exactly or
    nearly, among `training_templates`.
    """
    templates = [line["prompt"] for line in _read(data / f"{TEMPLATES['test']}.jsonl")]
    for one in test:
        if one.source == "jailbreakbench_behaviors":
            template = templates[_number(one.request) % len(templates)]
            wrapped = template.replace("[INSERT PROMPT HERE]", one.request)
            yield replace(
                one, source="jailbreakbench in templates", request=wrapped, goal=one.request
            )


def training_templates(data: Path) -> list[str]:
    return [line["prompt"] for line in _read(data / f"{TEMPLATES['train']}.jsonl")]


def answered(one: Exchange, draw: random.Random, templates: Sequence[str]) -> Exchange:
    """Give a training request that has no reply a written one, and some a jailbreak's text."""
    if one.reply:
        return one
    request = one.request
    if (
        templates
        and one.source not in ("wildguardmix", "gsm8k_train", "mmlu_1000")
        and draw.random() < WRAPPED
    ):
        template = draw.choice(templates)
        request = f"{template}\n\n{request}" if draw.random() < 0.8 else f"{request}\n\n{template}"
    refuses = draw.random() < 0.35
    text = draw.choice(TEXTS["refuses" if refuses else "complies"])
    words = sorted(dict.fromkeys(one.request.split()), key=len)[-4:]
    reply = text.format(
        request=one.request.rstrip("?.! "),
        topic=" ".join(w for w in one.request.split() if w in words),
    )
    return replace(
        one,
        request=request,
        reply=reply,
        goal=one.asked,
        refuses=refuses,
        unsafe=one.harmful and not refuses,
    )


def hollow(one: Exchange) -> Exchange:
    """Give a held-out request a hollow answer, of which its label says nothing.

    It complies in form and says nothing usable.
    """
    texts = TEXTS["test"]["complies"]
    return replace(
        one, reply=texts[_number(one.request) % len(texts)], unsafe=one.harmful, refuses=False
    )


def refused(one: Exchange) -> Exchange:
    """Give a held-out request a standard refusal."""
    texts = TEXTS["test"]["refusals"]
    return replace(one, reply=texts[_number(one.request) % len(texts)], unsafe=False, refuses=True)


def _prompt(one: Exchange) -> Prompt:
    return Prompt(id=one.source, messages=(Message(role="user", content=one.asked),))


def _read(path: Path) -> list[Line]:
    return [json.loads(line) for line in _text(path)]


def _text(path: Path) -> list[str]:
    with path.open(encoding="utf-8") as lines:  # splitlines would split within a text
        return list(lines)


def _lines(data: Path, name: str) -> list[Line]:
    """Read a set: as it is published where a reader is named, else as JSON Lines."""
    _, read = READERS.get(name, ("", _read))
    return read(_file(data, name))


def _file(data: Path, name: str) -> Path:
    """Return where a set is, under the name that it is published with."""
    published, _ = READERS.get(name, (f"{name}.jsonl", _read))
    return data / published


def _require_files(data: Path) -> None:
    names = [*PROMPTS, *REPLIES, *TEMPLATES.values()]
    missing = [path.name for path in (_file(data, name) for name in names) if not path.exists()]
    if missing:
        raise InputError(
            f"{data} lacks {len(missing)} of {len(names)} files: {', '.join(missing)}; README.md of"
            " this package says where each is published"
        )


def _xstest(path: Path) -> list[Line]:
    labels = {"safe": "benign", "unsafe": "unsafe"}
    return [{"prompt": row["prompt"], "label": labels[row["label"]]} for row in _table(path)]


def _moderation(path: Path) -> list[Line]:
    rows: list[dict[str, object]] = [*map(json.loads, _text(path))]
    return [
        {
            "prompt": str(row["prompt"]),
            "label": "unsafe" if any(row.get(kind) == 1 for kind in MODERATED) else "benign",
        }
        for row in rows
    ]


def _cyberseceval(path: Path) -> list[Line]:
    rows = json.loads(path.read_text("utf-8"))
    return [{"prompt": row["mutated_prompt"], "label": "benign"} for row in rows]


def _diasafety(path: Path) -> list[Line]:
    rows = json.loads(path.read_text("utf-8"))
    return [
        {"prompt": row["context"], "response": row["response"], "label": row["label"].lower()}
        for row in rows
    ]


def _hate_tweets(path: Path) -> list[Line]:
    """All tweets of the class hate, and a third of those that are neither hateful nor offensive."""
    labels = {"0": "unsafe", "2": "benign"}
    return [
        {"prompt": _tweet(row["tweet"]), "label": labels[row["class"]]}
        for row in _table(path)
        if row["class"] == "0" or (row["class"] == "2" and _number(row["tweet"]) % 3 == 0)
    ]


def _hatecheck(path: Path) -> list[Line]:
    """All cases that are not hateful, and as many of the hateful ones."""
    labels = {"hateful": "unsafe", "non-hateful": "benign"}
    return [
        {"prompt": row["test_case"].strip(), "label": labels[row["label_gold"]]}
        for row in _table(path)
        if row["label_gold"] == "non-hateful" or _number(row["test_case"]) % 2 == 0
    ]


def _convabuse(path: Path) -> list[Line]:
    """What people say to chat bots that an annotator called abusive, or not at all."""
    found = {}
    for row in _table(path):
        abusive = "1" in (row["is_abuse.-2"], row["is_abuse.-3"])
        text = row["user"].strip()
        if len(text) >= MINIMAL and (abusive or (row["is_abuse.1"] == "1" and text not in found)):
            found[text] = {"prompt": text, "label": "unsafe" if abusive else "benign"}
    return list(found.values())


def _instructions(path: Path) -> list[Line]:
    """Read a list of `instruction`, `input` and `response`, without very short ones."""
    lines = [
        {
            "prompt": "\n\n".join(filter(None, (row["instruction"], row["input"]))),
            "response": row["response"],
            "label": "benign",
            "response_label": "safe",
            "category": path.stem,
            "source": path.stem,
        }
        for row in json.loads(path.read_text("utf-8"))
    ]
    return [line for line in lines if len(line["prompt"]) >= MINIMAL and line["response"].strip()]


READERS: dict[str, tuple[str, Callable[[Path], list[Line]]]] = {
    "gpteacher_roleplay": ("gpteacher_roleplay.json", _instructions),
    "gpteacher_codegen": ("gpteacher_codegen.json", _instructions),
    "xstest": ("xstest_prompts.csv", _xstest),
    "openai_moderation": ("openai_moderation.jsonl", _moderation),
    "cyberseceval_frr": ("mitre_frr.json", _cyberseceval),
    "diasafety": ("diasafety_train.json", _diasafety),
    "hate_tweets": ("davidson.csv", _hate_tweets),
    "hatecheck": ("hatecheck.csv", _hatecheck),
    "convabuse": ("convabuse.csv", _convabuse),
}
"""Sets that are read as they are published: the file, and what reads it."""
MINIMAL = 12
"""Characters that a text needs to say anything."""
MODERATED = ("S", "H", "V", "HR", "SH", "S3", "H2", "V2")


def _table(path: Path) -> list[Line]:
    with path.open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def _tweet(text: str) -> str:
    """Drop what only a tweet has: marks of a repetition, names, links, escaped signs."""
    text = re.sub(r"^[!\"\s]*(RT )?|@\w+:?|https?://\S+|&#\d+;", " ", text)
    return " ".join(text.replace("&amp;", "&").replace("&gt;", ">").replace("&lt;", "<").split())


def _hash(line: Line) -> str:
    return hashlib.sha256(json.dumps(line, sort_keys=True).encode()).hexdigest()


def _number(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6])
