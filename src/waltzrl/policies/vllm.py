"""Rollouts on vLLM servers: token ids in and out, and adapters that are loaded while they run.

Every server has the same base. After each update it gets the adapters of the run under new names,
such as `waltzrl-feedback-v12-5e0c9a`: version 12 of a run that calls itself 5e0c9a. A name is never
used twice, so that no key or value that a server has cached belongs to earlier weights.
"""

import asyncio
import hashlib
import logging
import secrets
import shutil
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

import msgspec
import torch
from peft import PeftModel

from waltzrl.errors import InputError, PolicyError, ScoringError, WaltzError
from waltzrl.foundation.files import whole_folder
from waltzrl.policies.chat_completion import Json
from waltzrl.policies.gguf import find_gguf
from waltzrl.policies.local import LocalPolicy
from waltzrl.policies.policy import Sampling
from waltzrl.policies.remote import REJECTIONS, RemotePolicy
from waltzrl.policies.weights import CausalLM, activate_adapter, save_adapter
from waltzrl.records import Message, Reply, Tokens, Usage

CONCURRENCY = 256
"""The most requests under way at one server, as many as it decodes at once by default."""
TIMEOUT_SECONDS = 600.0
"""The time limit of one reply, which may wait for others."""
PINNED: Mapping[str, Json] = {
    "n": 1,
    "top_k": 0,
    "min_p": 0.0,
    "min_tokens": 0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "ignore_eos": False,
    # 0 asks for the log-probability of the sampled token alone.
    "logprobs": 0,
    "return_token_ids": True,
}
"""A server takes its defaults from the model's generation config, whose penalties and limits would
make the log-probabilities those of another policy than ours."""
PROBE = "How many of the 1,234 processes are killed? “Ça dépend”, 他说."
"""The text that both tokenizers read, and both models continue."""
PROBE_TOKENS = 16
"""The number of tokens that both score."""
PROBE_TOLERANCE = 0.1
"""Nats per token by which a server's log-probabilities may differ from ours on average: in float32
they differ by about 1e-5, in bfloat16 by about 0.01, and of another base by more than 1."""
RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""The values that `--max-lora-rank` can have."""

logger = logging.getLogger(__name__)

_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """What a server sampled."""

    version: str
    """The server's name of the adapter, or the base, that sampled."""
    ids: tuple[int, ...]
    """[T] the tokens, with the end-of-turn token when there was one."""
    logprobs: tuple[float, ...]
    """[T] log-probability in nats of each."""
    finish: Literal["stop", "length"]


def serve_command(causal_lm: CausalLM) -> str:
    """Return the command that starts a server for a run with these adapters."""
    model = causal_lm.model
    source = causal_lm.source or str(model.config.name_or_path)
    file = find_gguf(source)
    adapters = model.peft_config.values()
    rank = next(rank for rank in RANKS if rank >= max(config.r for config in adapters))
    # On a CPU, vLLM 0.32 ends when it reads a prompt with a seed in parts.
    whole_prompts = " --no-enable-chunked-prefill" if model.device.type == "cpu" else ""
    return (
        f"VLLM_ALLOW_RUNTIME_LORA_UPDATING=True vllm serve {file.cached if file else source}"
        f" --dtype {str(model.get_base_model().dtype).removeprefix('torch.')}"
        f" --enable-lora --max-lora-rank {rank} --max-loras {len(adapters)}"
        f" --logprobs-mode processed_logprobs{whole_prompts}"
    )


class VllmServers:
    """The servers that sample for one run; use it as an asynchronous context manager."""

    def __init__(self, urls: Sequence[str], causal_lm: CausalLM, folder: Path) -> None:
        """Describe the servers; the first publishing checks them.

        Args:
            urls: of the servers.
            causal_lm: the base that they serve, with the run's adapters on it.
            folder: for the published adapters, at the same path on every server's machine. It is
                emptied at the start, and removed at the end.
        """
        assert isinstance(causal_lm.model, PeftModel), "whole models are not published"
        self._model, self._causal_lm = causal_lm.model, causal_lm
        self._folder = folder.resolve()
        self._run = secrets.token_hex(3)
        self._servers = [_Server(url) for url in urls]
        self._names: dict[str, str] = {}
        """The present names of the adapters."""
        self._last_failure = ""

    async def __aenter__(self) -> "VllmServers":
        shutil.rmtree(self._folder, ignore_errors=True)  # of a run that was killed
        return self

    async def __aexit__(self, *exception: object) -> None:
        self._names.clear()
        await asyncio.gather(*map(self._update, self._answering))
        await asyncio.gather(*(server.remote.aclose() for server in self._servers))
        shutil.rmtree(self._folder, ignore_errors=True)

    def policy(self, local: LocalPolicy) -> "VllmPolicy":
        """Return a policy that samples on the servers what `local` would sample here."""
        return VllmPolicy(self, local)

    async def publish(self, step: int, learned: Sequence[str]) -> None:
        """Load what adapters are now on every server, under new names, and unload what they were.

        A server that fails is left out, with a warning, until the next publishing.

        Args:
            step: steps taken so far; the version in the names.
            learned: the adapters that may have changed; at first all are published.

        Raises:
            InputError: at first, a server is unfit: it has another base or tokenizer, or loads no
                adapters. Or the adapters cannot be written.
            ScoringError: no server is left.
        """
        first, before = not self._names, set(self._names.values())
        for adapter in self._model.peft_config if first else learned:
            self._names[adapter] = name = f"waltzrl-{adapter}-v{step}-{self._run}"
            with whole_folder(self._folder / name) as unfinished:
                save_adapter(self._model, adapter, unfinished)
        failures = await asyncio.gather(*map(self._update, self._servers))
        # Only now, because a server may read the former adapters until it has the new ones.
        for name in before.difference(self._names.values()):
            shutil.rmtree(self._folder / name)
        if first and (unfit := [e for e in failures if isinstance(e, InputError)]):
            raise unfit[0]
        for server, failure in zip(self._servers, failures, strict=True):
            if failure is None:
                server.answers = True
            else:
                self._leave_out(server, failure)
        if not self._answering:
            raise self._none_left()

    async def sample(self, adapter: str | None, request: Mapping[str, Json]) -> Sampled:
        """Have one server continue a prompt; another, if it fails.

        Args:
            adapter: None is the base.
            request: the prompt and what is not pinned.

        Raises:
            PolicyError: a server rejects the prompt, such as a too long one.
            ScoringError: no server is left.
        """
        while answering := self._answering:
            # The requests spread themselves over servers of different speed.
            server = min(answering, key=lambda server: server.under_way)
            name = server.base if adapter is None else self._names[adapter]
            server.under_way += 1
            try:
                return await self._complete(server, name, request)
            except InputError as error:
                self._leave_out(server, error)
            except PolicyError as error:
                if error.reason in REJECTIONS:
                    raise
                self._leave_out(server, error)
            finally:
                server.under_way -= 1
        raise self._none_left()

    @property
    def _answering(self) -> "list[_Server]":
        return [server for server in self._servers if server.answers]

    def _leave_out(self, server: "_Server", error: WaltzError) -> None:
        """Ask other servers until the next publishing; the first of many failures is logged."""
        self._last_failure = str(error)
        if server.answers:
            server.answers = False
            logger.warning("%s is left out until the next update: %s", server.url, error)

    def _none_left(self) -> ScoringError:
        return ScoringError(
            f"no vLLM server is left to sample ({self._last_failure}); nothing was learnt from this"
            f" step: start one as {self._command()}, and run train again to resume"
        )

    def _command(self) -> str:
        return f"`{serve_command(self._causal_lm)}`"

    async def _update(self, server: "_Server") -> WaltzError | None:
        """Load what the server lacks of what is published, and unload the rest of this run's.

        Returns:
            Why it could not be done; None if it was.
        """
        try:
            models = (await _ask_server(server, "/v1/models", None, _Models)).data
            server.base = next((model.id for model in models if model.parent is None), "")
            loaded = {model.id for model in models if model.id.endswith(f"-{self._run}")}
            if self._names and not loaded:  # at first, and when it was started again
                await self._check(server)
            for adapter, name in self._names.items():
                if name not in loaded:
                    # PEFT saves an adapter in a folder of its own name.
                    await self._load(server, name, self._folder / name / adapter)
            for name in loaded.difference(self._names.values()):
                await _post_body(server, "/v1/unload_lora_adapter", {"lora_name": name})
        except (InputError, PolicyError) as error:
            return error
        return None

    async def _check(self, server: "_Server") -> None:
        """Compare the server's tokenizer and base with ours.

        Raises:
            InputError: they are others.
            PolicyError: the server failed.
        """
        tokenizer = self._causal_lm.tokenizer
        prompt: list[int] = tokenizer(PROBE)["input_ids"]
        tokens = (await _ask_server(server, "/tokenize", {"prompt": PROBE}, _Tokenized)).tokens
        if tokens != prompt:
            raise InputError(
                f"{server.url} has another tokenizer than the run's base; start it as"
                f" {self._command()}"
            )
        request: dict[str, Json] = {"prompt": [*prompt], "max_tokens": PROBE_TOKENS}
        chance: dict[str, Json] = {"temperature": 1.0, "top_p": 1.0, "seed": 0}
        sampled = await self._complete(server, server.base, request | chance)
        own = _score_by_base(self._model, prompt, sampled.ids)
        distance = sum(abs(a - b) for a, b in zip(own, sampled.logprobs, strict=True)) / len(own)
        # Not `>=`, because a distance that is NaN must be refused as well.
        if not distance < PROBE_TOLERANCE:
            raise InputError(
                f"{server.url} has another base than the run: its log-probabilities differ by"
                f" {distance:.2f} nats a token, need less than {PROBE_TOLERANCE}; start it as"
                f" {self._command()}"
            )

    async def _load(self, server: "_Server", name: str, folder: Path) -> None:
        """Load an adapter.

        Raises:
            InputError: the server answers that it cannot.
            PolicyError: it does not answer.
        """
        try:
            adapter: dict[str, Json] = {"lora_name": name, "lora_path": str(folder)}
            await _post_body(server, "/v1/load_lora_adapter", adapter)
        except PolicyError as error:
            if not error.reason.startswith("HTTP"):
                raise
            raise InputError(
                f"{server.url} cannot load an adapter ({error}); it must see {folder}, and be"
                f" started as {self._command()}"
            ) from error

    async def _complete(self, server: "_Server", name: str, request: Mapping[str, Json]) -> Sampled:
        """Have this server continue a prompt.

        Raises:
            InputError: the server returned no token ids or no log-probabilities.
            PolicyError: it failed, or rejects the prompt.
        """
        ends: list[Json] = [*sorted(self._causal_lm.end_ids)]
        body = {**PINNED, "stop_token_ids": ends, **request, "model": name}
        completion = await _ask_server(server, "/v1/completions", body, _Completion)
        choice = completion.choices[0] if completion.choices else _Choice()
        ids = choice.token_ids or ()
        logprobs = choice.logprobs.token_logprobs if choice.logprobs is not None else ()
        if not ids or len(ids) != len(logprobs):
            raise InputError(
                f"{server.url} returned {len(ids)} token ids and {len(logprobs)} log-probabilities,"
                f" need as many of both; use vLLM 0.10.2 or later, and start it as"
                f" {self._command()}"
            )
        return Sampled(
            version=name,
            ids=tuple(ids),
            logprobs=tuple(logprobs),
            finish="length" if choice.finish_reason == "length" else "stop",
        )


class VllmPolicy:
    """Replies as a local policy would, with its adapter as the servers have it."""

    def __init__(self, servers: VllmServers, local: LocalPolicy) -> None:
        """Make a policy.

        Args:
            servers: sample.
            local: renders conversations, and names the adapter.
        """
        self._servers, self._local = servers, local
        self.seed(0)

    def seed(self, number: int) -> None:
        """Restart the random numbers: the same prompts get the same seeds, in any order."""
        self._seed = number
        self._asked: Counter[tuple[int, ...]] = Counter()

    async def reply(self, messages: Sequence[Message], sampling: Sampling) -> Reply:
        """Return the next assistant turn, with its tokens and log-probabilities.

        Raises:
            InputError: the tokenizer has no chat template.
            PolicyError: the conversation is too long.
            ScoringError: no server is left.
        """
        started = time.perf_counter()
        if sampling.tools or sampling.schema is not None or sampling.format is not None:
            raise PolicyError("rollouts on vLLM have no tools, schemas and formats; remove them")
        prompt = self._local.render(messages, template=sampling.template)
        request: dict[str, Json] = {
            "prompt": [*prompt],
            "max_tokens": sampling.max_new_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "seed": self._next_seed(prompt) if sampling.seed is None else sampling.seed,
        }
        sampled = await self._servers.sample(self._local.adapter, request)
        count = self._wanted(sampled.ids, sampling)
        text = self._text(sampled.ids[:count])
        stopped = sampling.enough is not None and sampling.enough(text)
        return Reply(
            text=sampling.cut(text),
            finish="stop" if stopped else sampled.finish,
            usage=Usage(input_tokens=len(prompt), output_tokens=count, model=sampled.version),
            milliseconds=(time.perf_counter() - started) * 1e3,
            tokens=Tokens(
                prompt_ids=prompt,
                ids=sampled.ids[:count],
                logprobs=sampled.logprobs[:count],
                version=sampled.version,
            ),
        )

    def _next_seed(self, prompt: tuple[int, ...]) -> int:
        """Return the seed of one reply; the same prompt gets another each time."""
        self._asked[prompt] += 1
        text = f"{self._seed}/{self._asked[prompt]}/{prompt}"
        # A server's seed is a signed number of 64 bits.
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) >> 1

    def _wanted(self, ids: tuple[int, ...], sampling: Sampling) -> int:
        """Return after how many tokens a local policy would have stopped."""
        enough = sampling.enough
        if enough is None:
            return len(ids)
        counts = range(1, len(ids))
        # A search by halves, because `Sampling.enough` is monotonic.
        return 1 + bisect_left(counts, True, key=lambda count: enough(self._text(ids[:count])))

    def _text(self, ids: Sequence[int]) -> str:
        return str(self._local.tokenizer.decode(ids, skip_special_tokens=True))


class _Server:
    """One server, and what is known of it."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/").removesuffix("/v1")
        self.remote = RemotePolicy(
            self.url, "", concurrency=CONCURRENCY, timeout_seconds=TIMEOUT_SECONDS, retries=1
        )
        self.base = ""
        """The server's name of its base."""
        self.answers = True
        self.under_way = 0
        """The number of requests that it has not answered yet."""


class _Model(msgspec.Struct):
    id: str
    parent: str | None = None
    """The base of an adapter."""


class _Models(msgspec.Struct):
    data: list[_Model]


class _Tokenized(msgspec.Struct):
    tokens: list[int]


class _Logprobs(msgspec.Struct):
    token_logprobs: list[float]


class _Choice(msgspec.Struct):
    finish_reason: str | None = None
    token_ids: list[int] | None = None
    logprobs: _Logprobs | None = None


class _Completion(msgspec.Struct):
    choices: list[_Choice]


async def _post_body(server: _Server, path: str, body: Mapping[str, Json]) -> bytes:
    return await server.remote.post(path, msgspec.json.encode(body))


async def _ask_server(
    server: _Server, path: str, body: Mapping[str, Json] | None, kind: type[_Answer]
) -> _Answer:
    """Return what the server answers; without a body the request is a GET."""
    answer = await (server.remote.get(path) if body is None else _post_body(server, path, body))
    try:
        return msgspec.json.decode(answer, type=kind)
    except msgspec.DecodeError as error:
        raise PolicyError(f"{server.url}{path} is not vLLM's: {error}") from error


@torch.no_grad()
def _score_by_base(model: PeftModel, prompt: Sequence[int], ids: Sequence[int]) -> list[float]:
    """Return [T] log-probabilities in nats of the tokens after the prompt, by the bare base."""
    with activate_adapter(model, None) as base:
        tokens = torch.tensor([[*prompt, *ids]], device=base.device)
        logits = base(input_ids=tokens).logits[0, len(prompt) - 1 : -1].float()
    scored: list[float] = (
        logits.log_softmax(-1).gather(1, tokens[0, len(prompt) :, None])[:, 0].tolist()
    )
    return scored
