"""Names of CUDA calls by CUPTI's callback numbers: those that start work or wait for it.

Where the same call has several numbers (an older version of it, per-thread streams), all
are here under its plain name.
"""

from __future__ import annotations

_RUNTIME = {
    "cudaGetLastError": (10,),
    "cudaPeekAtLastError": (11,),
    "cudaSetDevice": (16,),
    "cudaGetDevice": (17,),
    "cudaMalloc": (20,),
    "cudaFree": (22,),
    "cudaHostAlloc": (27,),
    "cudaMemcpy": (31, 215),
    "cudaMemcpy2D": (32, 216),
    "cudaMemcpyAsync": (41, 225),
    "cudaMemcpy2DAsync": (44, 228),
    "cudaMemset": (49, 233),
    "cudaMemsetAsync": (51, 235),
    "cudaStreamSynchronize": (131, 239),
    "cudaStreamQuery": (132, 240),
    "cudaEventRecord": (135, 242),
    "cudaEventSynchronize": (137,),
    "cudaEventQuery": (138,),
    "cudaStreamWaitEvent": (147, 247),
    "cudaMemcpyPeerAsync": (161,),
    "cudaDeviceSynchronize": (165,),
    "cudaLaunchKernel": (211, 214),
    "cudaLaunchCooperativeKernel": (269, 270),
    "cudaGraphInstantiate": (310, 443),
    "cudaGraphLaunch": (311, 312),
    "cudaStreamBeginCapture": (315, 316),
    "cudaStreamIsCapturing": (317, 318),
    "cudaStreamEndCapture": (319, 320),
    "cudaMallocAsync": (373, 374),
    "cudaFreeAsync": (375, 376),
    "cudaLaunchKernelExC": (430, 431),
}
_DRIVER = {
    "cuCtxSynchronize": (17, 800),
    "cuModuleLoadData": (19,),
    "cuMemcpyHtoDAsync": (60, 277, 421),
    "cuMemcpyDtoHAsync": (62, 279, 422),
    "cuMemcpyDtoDAsync": (64, 281, 423),
    "cuEventRecord": (119, 441),
    "cuEventSynchronize": (121,),
    "cuStreamSynchronize": (126, 440),
    "cuMemsetD8Async": (216, 428),
    "cuMemsetD32Async": (220, 430),
    "cuStreamWaitEvent": (295, 436),
    "cuMemcpyAsync": (306, 418),
    "cuLaunchKernel": (307, 442),
    "cuLaunchCooperativeKernel": (477, 478),
    "cuGraphLaunch": (514, 515),
    "cuLaunchKernelEx": (652, 653),
    "cuLibraryLoadData": (678,),
}
#: Calls that launch one kernel each: the nodes of a graph that is being captured.
KERNEL_LAUNCHES = tuple(
    name for name in (*_RUNTIME, *_DRIVER) if "LaunchK" in name or "LaunchC" in name
)
#: Calls that become a node of a graph too, which runs as a copy or, so small ones, as a kernel.
COPIES = tuple(name for name in (*_RUNTIME, *_DRIVER) if "Memcpy" in name or "Memset" in name)
_NAMES = {
    (domain, number): name
    for domain, table in ((0, _DRIVER), (1, _RUNTIME))
    for name, numbers in table.items()
    for number in numbers
}


def call_name(domain: int, number: int) -> str:
    """The call's name; `domain` 0 is the driver's, 1 the runtime's."""
    known = _NAMES.get((domain, number))
    return known or f"{'runtime' if domain else 'driver'} call {number}"
