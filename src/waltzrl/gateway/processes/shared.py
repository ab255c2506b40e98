"""The memory that a gateway's supervisor and its workers share."""

from waltzrl.foundation.shared import SharedMemory
from waltzrl.gateway.shares import CELL_BYTES, LOAD_BYTES, RateTable, WorkerLoad
from waltzrl.store.audit.log import STATUS_BYTES, LogStatus

RATE_BYTES = 4096 * CELL_BYTES
SIZE = LOAD_BYTES + RATE_BYTES + STATUS_BYTES


class GatewayMemory:
    """The parts of the memory."""

    def __init__(self, descriptor: int | None = None) -> None:
        """Use the memory of a descriptor; None creates it."""
        self._memory = SharedMemory.create(SIZE) if descriptor is None else SharedMemory(descriptor)
        self.descriptor = self._memory.descriptor
        whole = self._memory.bytes
        self.rates = RateTable(whole[LOAD_BYTES : LOAD_BYTES + RATE_BYTES], self._memory.locked)
        self.log_status = LogStatus(whole[LOAD_BYTES + RATE_BYTES :])

    def load(self, number: int) -> WorkerLoad:
        """Return the loads of all workers, as seen by one."""
        return WorkerLoad(self._memory.bytes[:LOAD_BYTES], number, self._memory.locked)
