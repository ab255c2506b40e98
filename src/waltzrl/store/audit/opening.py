"""The audit log of a gateway: its settings, and the retention of its contents."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from waltzrl.errors import WaltzError
from waltzrl.foundation.background import in_background
from waltzrl.records import Collaboration
from waltzrl.store.audit.contents import expire_contents
from waltzrl.store.audit.keys import default_key, signing_key
from waltzrl.store.audit.log import LogSettings
from waltzrl.store.audit.note import NoteError
from waltzrl.store.audit.settings import AuditConfig
from waltzrl.store.privacy.scrubbing import scrub_collaboration
from waltzrl.store.privacy.settings import PrivacyConfig

DAY_SECONDS = 86_400.0
RETENTION_INTERVAL_SECONDS = 600.0

logger = logging.getLogger(__name__)


def log_settings(audit: AuditConfig, privacy: PrivacyConfig) -> LogSettings:
    """Return the settings of a log's writer.

    Raises:
        InputError: the key of `privacy` cannot be read or written.
    """
    return LogSettings(on_failure=audit.on_failure, contents=_choose_scrub(audit, privacy))


def log_key(audit: AuditConfig) -> Path:
    """Return the file of a log's private key."""
    return audit.key or default_key(audit.folder)


@asynccontextmanager
async def contents_expire(audit: AuditConfig) -> AsyncIterator[None]:
    """Remove the texts of old decisions, again and again, during the block."""
    if not audit.contents:
        yield
        return
    async with in_background(_expire_contents(audit)):
        yield


async def _expire_contents(audit: AuditConfig) -> None:
    while True:
        before = time.time() - audit.contents_days * DAY_SECONDS
        try:
            key = signing_key(log_key(audit))
            await asyncio.to_thread(expire_contents, audit.folder, key, before)
        except (WaltzError, NoteError, OSError) as error:
            logger.error("cannot remove expired contents of the audit log: %s", error)  # noqa: TRY400
        await asyncio.sleep(RETENTION_INTERVAL_SECONDS)


def _choose_scrub(
    audit: AuditConfig, privacy: PrivacyConfig
) -> Callable[[Collaboration], Collaboration] | None:
    """Return the function that scrubs contents before they are stored; None if none are."""
    if not audit.contents:
        return None
    from waltzrl.store.privacy.opening import open_redaction

    redaction = open_redaction(privacy)
    return partial(scrub_collaboration, scrub=redaction.scrub)
