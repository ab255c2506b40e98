"""Write the labelled requests on which the precision of each rule is measured.

    python tools/rule_corpus.py DATA_DIR > runs/corpus.jsonl
    waltzrl rules lint --data runs/corpus.jsonl

Harmless ones are those of `harmless_requests.py` and GuardReasoner's benign prompts; as many
harmful ones are drawn, by a hash, from public sets that the rules were written with.
"""

import hashlib
import json
import sys
from pathlib import Path

from harmless_requests import requests

from waltzrl.foundation.jsonl import read_prompts

BENIGN = "guardreasoner5k_prompts"
HARMFUL = (
    "advbench",
    "malicious_instruct_tdc2023",
    "trustllm_misuse",
    "alert_prompts",
    "red_instruct_harmful_questions",
    "guardreasoner5k_prompts",
)


def main(data: Path) -> None:
    benign = [text for _family, text in requests()]
    benign += _labelled(data, BENIGN, "benign")
    harmful = {text for name in HARMFUL for text in _labelled(data, name, "unsafe")}
    drawn = sorted(harmful, key=lambda text: hashlib.sha256(text.encode()).digest())
    for label, texts in (("benign", benign), ("unsafe", drawn[: len(benign)])):
        for text in texts:
            sys.stdout.write(json.dumps({"prompt": text, "label": label}) + "\n")


def _labelled(data: Path, name: str, label: str) -> list[str]:
    prompts = read_prompts(data / f"{name}.jsonl")
    return [prompt.request for prompt in prompts if prompt.label == label]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
