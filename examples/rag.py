"""Retrieval-augmented generation through the gateway, which is all that a client has to know.

pip install openai
waltzrl serve --upstream http://localhost:8000/v1
python examples/rag.py http://localhost:8080/v1 qwen nomic-embed "Why does bread rise?"
"""

import math
import sys
from collections.abc import Sequence

from openai import OpenAI

DOCUMENTS = (
    "Yeast eats sugar and gives off gas; the gas stays in the dough, so bread rises.",
    "The moon pulls at the sea, so there are tides, mostly two each day.",
    "Leaves look green because chlorophyll reflects green light.",
)


def similarity(first: Sequence[float], second: Sequence[float]) -> float:
    """Return the cosine of the angle between two vectors of the same length."""
    product = sum(a * b for a, b in zip(first, second, strict=True))
    return product / (math.hypot(*first) * math.hypot(*second))


def nearest(client: OpenAI, model: str, question: str) -> str:
    """Return the document whose embedding is most similar to the question's."""
    response = client.embeddings.create(model=model, input=[question, *DOCUMENTS])
    asked, *vectors = [item.embedding for item in response.data]
    ranked = zip(DOCUMENTS, vectors, strict=True)
    return max(ranked, key=lambda document: similarity(asked, document[1]))[0]


def main(url: str, chat_model: str, embedding_model: str, question: str) -> None:
    """Find the document that answers a question, and let the model answer from it."""
    with OpenAI(base_url=url) as client:
        document = nearest(client, embedding_model, question)
        prompt = f"Answer from this document: {document}\n\nQuestion: {question}"
        response = client.chat.completions.with_raw_response.create(
            model=chat_model, messages=[{"role": "user", "content": prompt}]
        )
    print(f"document  {document}")
    print(f"decision  {response.headers['x-waltzrl-decision']}")
    print(f"answer    {response.parse().choices[0].message.content}")


main(*sys.argv[1:])
