"""Say what a GPU server is doing, so that its kernels carry the request's trace id.

    from spanlite import instrument

    with instrument.request(headers["traceparent"]) as request:
        with instrument.step([request]):
            with instrument.stage("attention"):
                ...

All are context managers and decorators. They write NVTX ranges to whatever tool
`NVTX_INJECTION64_PATH` or `CUDA_INJECTION64_PATH` names; without one they do nothing. Nothing
but the standard library is imported.
"""

from spanlite.instrument import metrics
from spanlite.instrument._ranges import enabled, request, stage, step
from spanlite.instrument._request import Request
from spanlite.instrument.modules import hook_modules
from spanlite.instrument.probes import probe_modules
from spanlite.instrument.triton_jit import hook_triton

__all__ = [
    "Request",
    "enabled",
    "hook_modules",
    "hook_triton",
    "metrics",
    "probe_modules",
    "request",
    "stage",
    "step",
]
