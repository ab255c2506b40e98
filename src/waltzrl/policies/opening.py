"""From a model's name to a policy: behind a server, or with weights in this process."""

import os
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from waltzrl.errors import MissingExtraError
from waltzrl.policies import Policy, RemotePolicy

if TYPE_CHECKING:
    from waltzrl.policies.local import LocalPolicy


def remote_policy(
    server: str,
    model: str,
    *,
    key_env: str = "OPENAI_API_KEY",
    headers: Mapping[str, str] | None = None,
    concurrency: int = 16,
    retries: int = 3,
) -> RemotePolicy:
    """Describe a model behind a server; its key is the variable `key_env`. See `RemotePolicy`.

    Raises:
        InputError: the server's address is invalid.
    """
    key = os.environ.get(key_env)
    return RemotePolicy(
        server, model, api_key=key, headers=headers, concurrency=concurrency, retries=retries
    )


async def open_policy(
    name: str,
    server: str | None,
    connections: AsyncExitStack,
    *,
    key_env: str = "OPENAI_API_KEY",
    concurrency: int = 16,
) -> Policy:
    """Open a model on a server, which `connections` closes, or load its weights.

    Raises:
        InputError: the server's address is invalid.
        CheckpointError: there is no such model, or it is damaged.
        MissingExtraError: torch is missing.
    """
    if server is None:
        return local_policy(name)
    remote = remote_policy(server, name, key_env=key_env, concurrency=concurrency)
    return await connections.enter_async_context(remote)


def require_local_policies() -> None:
    """Check that models can run in this process.

    Raises:
        MissingExtraError: torch is missing.
    """
    try:
        import waltzrl.policies.local  # noqa: F401 - whether it can be imported is the check
    except ModuleNotFoundError as missing:
        raise MissingExtraError("a model in this process", "PyTorch", "train") from missing


def local_policy(name: str, *, in_thread: bool = False) -> "LocalPolicy":
    """Load weights into this process, on the GPU if there is one.

    Args:
        name: of a model, as in `load_causal_lm`.
        in_thread: keep the event loop free while it decodes, and shorten replies to what fits into
            the context, as a server must.

    Raises:
        CheckpointError: there is no such model, or it is damaged.
        MissingExtraError: torch is missing.
    """
    require_local_policies()
    from waltzrl.policies.compute import ComputeSettings, resolve_compute
    from waltzrl.policies.local import Decoding, LocalPolicy
    from waltzrl.policies.weights import load_causal_lm

    compute = resolve_compute(ComputeSettings())
    causal_lm = load_causal_lm(name, compute.device, compute.dtype)
    decoding = Decoding(in_thread=in_thread, clamp=in_thread)
    return LocalPolicy(causal_lm.model, causal_lm.tokenizer, decoding=decoding)
