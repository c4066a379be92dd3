"""How much of the GPU's memory each process holds, by nvidia-smi, while others run."""

from __future__ import annotations

import threading

from bench._gpu import in_use_mib

EVERY_S = 5.0
#: A process has loaded its model by then.
SETTLED_S = 15.0


class DeviceMemory(threading.Thread):
    """Looks each few seconds until told to stop."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._seen: dict[int, list[int]] = {}
        self._stop_asked = threading.Event()
        self.start()

    def run(self) -> None:
        """Look."""
        while not self._stop_asked.wait(EVERY_S):
            for process, size in in_use_mib().items():
                self._seen.setdefault(process, []).append(size)

    def stop(self) -> None:
        """Look no more."""
        self._stop_asked.set()
        self.join()

    def grown_mib(self, process: int) -> tuple[int, float]:
        """By how much a process's memory has grown since it settled, and in how many seconds."""
        sizes = list(self._seen.get(process, ()))[int(SETTLED_S / EVERY_S) :]
        return (sizes[-1] - sizes[0], (len(sizes) - 1) * EVERY_S) if sizes else (0, 0.0)
