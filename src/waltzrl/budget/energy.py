"""The energy that this machine uses, where it tells: RAPL of its processors, NVML of its GPUs."""

from collections.abc import Callable
from pathlib import Path

RAPL = Path("/sys/class/powercap")
"""Linux's counters of the energy of processors; most machines let only root read them."""

Reading = Callable[[], float]
"""Returns joules since some time in the past.

Raises:
    OSError: it cannot be read any more.
"""


def open_energy(rapl: Path = RAPL) -> Callable[[], float | None]:
    """Return what reads this machine's energy in joules; it returns None where none can be read."""
    packages = [
        _open_rapl(zone) for zone in sorted(rapl.glob("intel-rapl:*")) if _is_readable(zone)
    ]
    readings = [*packages, *_open_nvml()]

    def read_joules() -> float | None:
        try:
            return sum(reading() for reading in readings) if readings else None
        except OSError:
            return None

    return read_joules


def _is_readable(zone: Path) -> bool:
    """Return whether a zone is a whole processor, whose parts are zones too, and can be read."""
    try:
        int((zone / "energy_uj").read_text())
        name = (zone / "name").read_text()
    except (OSError, ValueError):
        return False
    # Laptops have the zone "psys" beside their processor, which it contains.
    return zone.name.count(":") == 1 and name.startswith("package")


def _open_rapl(zone: Path) -> Reading:
    """Return a reading of a counter of microjoules that begins again at its maximum."""
    most = int((zone / "max_energy_range_uj").read_text())
    last, total = int((zone / "energy_uj").read_text()), 0

    def joules() -> float:
        nonlocal last, total
        now = int((zone / "energy_uj").read_text())
        total += now - last if now >= last else now + most - last
        last = now
        return total / 1e6

    return joules


def _open_nvml() -> list[Reading]:
    """Return a reading of each NVIDIA GPU; none without nvidia-ml-py, or where NVML refuses."""
    try:
        import pynvml
    except ModuleNotFoundError:
        return []
    try:
        pynvml.nvmlInit()
        handles = [
            pynvml.nvmlDeviceGetHandleByIndex(number)
            for number in range(pynvml.nvmlDeviceGetCount())
        ]
        readings = [
            _open_gpu(pynvml.nvmlDeviceGetTotalEnergyConsumption, handle) for handle in handles
        ]
        # Some GPUs have no counter, which only a reading shows.
        for reading in readings:
            reading()
    except (pynvml.NVMLError, OSError):
        return []
    return readings


def _open_gpu(millijoules: Callable[[object], int], handle: object) -> Reading:
    return lambda: millijoules(handle) / 1e3
