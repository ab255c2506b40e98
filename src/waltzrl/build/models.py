"""From a model's name to a policy: behind a server, or with weights in this process."""

import os

from waltzrl.errors import MissingExtraError
from waltzrl.policies import Policy, RemotePolicy
from waltzrl.policies.remote import server_address


def remote_policy(
    server: str,
    model: str,
    *,
    key_env: str = "OPENAI_API_KEY",
    concurrency: int = 16,
    retries: int = 3,
) -> RemotePolicy:
    """Describe a model behind a server; its key is the variable `key_env`. See `RemotePolicy`.

    Raises:
        InputError: the server's address is none.
    """
    server_address(server)
    key = os.environ.get(key_env)
    return RemotePolicy(server, model, api_key=key, concurrency=concurrency, retries=retries)


def local_policy(name: str, *, in_thread: bool = False) -> Policy:
    """Load weights into this process; `in_thread` keeps the event loop free, as a server must.

    Raises:
        CheckpointError: there are none, or they are damaged.
        MissingExtraError: torch is missing.
    """
    try:
        from waltzrl.build.roles import load_policy
    except ModuleNotFoundError as missing:
        raise MissingExtraError("a model in this process", "PyTorch", "train") from missing
    return load_policy(name, in_thread=in_thread)
