"""Records decode loops with SpanLite's own agent and daemon, on a GPU.

    python tests/recordings/record_agent.py OUTPUT_FOLDER [STEPS]

writes `decode_eager.spans.zst` and `decode_graphs.spans.zst`: a process each that decodes with the
model of `record_decode.py`, over 1, 4 and 8 streams, from the start of CUDA to its end, and says
what it does with `spanlite.instrument`. `spanlite collect --output` writes the files;
`spanlite import` takes them.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from spanlite import instrument

ROOT = Path(__file__).parents[2]
LIBRARY = ROOT / "collectors" / "spanlite_collectors" / "lib" / "libspanlite_agent.so"
MODES = ("eager", "graphs")
STREAMS = (1, 4, 8)
#: Pairs of requests one after the other, and the steps that serve each pair.
PAIRS, STEPS = 4, 8
#: All of a recording's figures are of these settings.
SETTINGS = {
    "CUDA_INJECTION64_PATH": str(LIBRARY),
    "NVTX_INJECTION64_PATH": str(LIBRARY),
    "SPANLITE_AGENT_LEVEL": "continuous",
    "OTEL_SERVICE_NAME": "decode",
}


def serve(mode: str, steps: int) -> None:
    """Be the server: decode for some requests, over each number of streams."""
    sys.path.insert(0, str(Path(__file__).parent))
    import record_decode
    import torch

    record_decode.span = instrument.stage  # type: ignore[assignment]
    for streams in STREAMS:
        with torch.device("cuda"):
            decoder = record_decode.Decoder(streams)
        for _ in range(3):
            decoder.step()
        torch.cuda.synchronize()
        graph = record_decode.graph_of(decoder) if mode == "graphs" else None
        for pair in range(PAIRS):
            served = [instrument.request(name=f"chat {2 * pair + i}") for i in range(2)]
            for request in served:
                request.begin()
            for _ in range(steps):
                with instrument.step(served, streams=streams):
                    graph.replay() if graph else decoder.step()
                    for tokens in decoder.tokens:
                        tokens.to("cpu", non_blocking=True)
                    torch.cuda.synchronize()
            for request in served:
                request.end()


def record(path: Path, mode: str, steps: int) -> None:
    """One server, and the daemon beside it. Raises RuntimeError where one of them fails."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        command = [sys.executable, "-m", "spanlite.cli", "collect", "--output", str(path),
                   "--agent-dir", folder, "--pm-sampling", "--otlp-port", "0",
                   "--metrics-port", "0"]  # fmt: skip
        daemon = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        try:
            server = [sys.executable, __file__, "--serve", mode, str(steps)]
            environment = os.environ | SETTINGS | {"SPANLITE_AGENT_DIR": folder}
            subprocess.run(server, env=environment, check=True)
            while list(Path(folder).glob("*.ring")) and daemon.poll() is None:
                time.sleep(0.1)
        finally:
            daemon.send_signal(signal.SIGTERM)
            _, said = daemon.communicate()
    print(re.sub(r"^", "  ", said.rstrip(), flags=re.M))
    if daemon.returncode:
        raise RuntimeError(f"the daemon ended with {daemon.returncode}")
    print(f"{path.name}: {path.stat().st_size} bytes", flush=True)


def main() -> None:
    """Record every mode, or be the server of one."""
    if sys.argv[1] == "--serve":
        serve(sys.argv[2], int(sys.argv[3]))
        return
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else STEPS
    for mode in MODES:
        record(folder / f"decode_{mode}.spans.zst", mode, steps)


if __name__ == "__main__":
    main()
