"""How long does a reviewer of a package take for a reply, alone and in a batch?

    python benchmarks/reviewer_latency.py [NAME] [--tokens 200] [--rounds 30]

Prints the median and the 95th percentile of the wall time, and the resident memory. A token is
taken for four characters.
"""

import argparse
import asyncio
import resource
from time import perf_counter

from waltzrl.agents.classifier import MOST_AT_ONCE, ClassifierReviewer
from waltzrl.agents.opening import open_reviewer
from waltzrl.records import Message, Prompt, Reply

SENTENCE = "Knead the dough for ten minutes, and let it rest in a warm place until it has doubled. "
PROMPT = Prompt(id="0", messages=(Message(role="user", content="How do I bake bread at home?"),))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", nargs="?", default="smollm2")
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=30)
    given = parser.parse_args()
    started = perf_counter()
    reviewer = open_reviewer(given.name)
    print(f"{reviewer.name}, loaded in {perf_counter() - started:.1f} s")
    text = (SENTENCE * given.tokens)[: 4 * given.tokens]
    asyncio.run(measure(reviewer, Reply(text=text), given.rounds))
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"resident at most {resident:.0f} MiB")


async def measure(reviewer: ClassifierReviewer, reply: Reply, rounds: int) -> None:
    await reviewer.review(PROMPT, reply)
    for replies in (1, MOST_AT_ONCE):
        seconds = []
        for _ in range(rounds):
            started = perf_counter()
            await asyncio.gather(*(reviewer.review(PROMPT, reply) for _ in range(replies)))
            seconds.append(perf_counter() - started)
        seconds.sort()
        p50, p95 = seconds[rounds // 2], seconds[int(0.95 * rounds)]
        print(f"{replies} at a time: p50 {1e3 * p50:.0f} ms, p95 {1e3 * p95:.0f} ms")


if __name__ == "__main__":
    main()
