"""A program around a file of the audit's corpus that launches any of its kernels by name.

Plain Python: the machine with the GPU need not have our packages.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_VERDICT = re.compile(r"^// (\w+): ([a-z-]+)(?:, block ([\d ]+))?$", re.MULTILINE)
_KERNEL = re.compile(
    r'extern "C" __global__ void (?:__launch_bounds__\((\d+)\)\s*)?(\w+)\(([^)]*)\)'
)
_POINTER = re.compile(
    r"(const )?(?:volatile )?([\w ]+?)\s*(?:const\s*)?\*\s*(?:__restrict__ )?(\w+)$"
)
_BUFFER_BYTES = 16 << 20
#: Seconds for a kernel under the sanitizer, with the making of its buffers; and for the start.
DEADLINE_S, START_S = 8, 25

_HEAD = r"""
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>
#include "%(file)s"
// A kernel that never ends would spin on the GPU, beside all others, while its process lives:
// the process ends itself after a while, whatever has become of those that started it.
static void late(int) {
  static const char said[] = "END ? deadline\n";
  if (write(1, said, sizeof said - 1) < 0) _exit(7);
  _exit(6);
}
// Constant buffers get small random numbers, others zeros; both are larger than any index reaches.
template <typename T> __global__ void fill(T* to, size_t count) {
  size_t step = size_t(gridDim.x) * blockDim.x;
  for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < count; i += step)
    to[i] = T((unsigned(i) * 2654435761u >> 13) %% 4);
}
static void* buffer(int floats) {
  void* made = nullptr;
  if (cudaMalloc(&made, %(bytes)d) != cudaSuccess) exit(4);
  cudaMemset(made, 0, %(bytes)d);
  if (floats == 1) fill<<<264, 256>>>((float*)made, %(bytes)d / 4);
  if (floats == 2) fill<<<264, 256>>>((int*)made, %(bytes)d / 4);
  if (floats == 3) fill<<<264, 256>>>((unsigned char*)made, %(bytes)d);
  if (floats == 4) fill<<<264, 256>>>((double*)made, %(bytes)d / 8);
  cudaDeviceSynchronize();
  return made;
}
int main(int count, char** names) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  signal(SIGALRM, late);
  // The context, and the sanitizer's work on the module: not the first kernel's time.
  alarm(%(start)d);
  cudaFree(buffer(1));
  for (int i = 1; i < count; ++i) {
    const char* name = names[i];
    printf("BEGIN %%s\n", name);
    fflush(stdout);
    alarm(%(deadline)d);
    cudaError_t error = cudaErrorInvalidDeviceFunction;
    int size = 0;
"""
_LAUNCH = """    if (!strcmp(name, "%(name)s")) {
%(declared)s
      void* arguments[] = {%(listed)s};
      dim3 grid(%(grid)s), block(%(block)s);
      // Twice, so that conditions on n go both ways.
      for (int n : {1000, 2}) {
        size = n;
        error = cudaLaunchKernel((const void*)%(name)s, grid, block, arguments, 4096, 0);
        if (error == cudaSuccess) error = cudaDeviceSynchronize();
        if (error != cudaSuccess) break;
      }
    }
"""
_TAIL = r"""    printf("END %s %s\n", name, cudaGetErrorName(error));
    fflush(stdout);
    if (error != cudaSuccess) return 3;
  }
  return 0;
}
"""
#: Scalars by name; what is not here is 1000.
_SCALARS = {"tiles": "8", "width": "256", "height": "256"}
_FILLS = {"float": 1, "float4": 1, "float2": 1, "int": 2, "unsigned": 2, "unsigned char": 3}
_FILLS |= {"double": 4}


@dataclass(frozen=True, slots=True)
class Launched:
    """A kernel of the corpus and how it is launched."""

    file: Path
    name: str
    verdict: str
    block: tuple[int, int, int]
    parameters: str
    shares_memory: bool

    @property
    def is_launchable(self) -> bool:
        """Whether the harness can make up its arguments: no tables of pointers, no descriptors."""
        return "* const*" not in self.parameters and "uint64_t" not in self.parameters


def kernels_of(path: Path) -> list[Launched]:
    """The kernels of a file with the verdicts of its head."""
    text = path.read_text()
    said = {name: (verdict, block) for name, verdict, block in _VERDICT.findall(text)}
    found = list(_KERNEL.finditer(text))
    made = []
    for number, match in enumerate(found):
        bounds, name, parameters = match.groups()
        if name not in said:
            continue
        verdict, sizes = said[name]
        end = found[number + 1].start() if number + 1 < len(found) else len(text)
        x, y, z = (*map(int, (sizes or bounds or "256").split()), 1, 1)[:3]
        shares = (
            "__shared__" in text[match.start() : end]
            or "dynamic_memory" in text[match.start() : end]
        )
        made.append(Launched(path, name, verdict, (x, y, z), parameters, shares))
    return made


def source(path: Path, kernels: list[Launched]) -> str:
    """The program for a file."""
    parts = [_HEAD % {"file": path.resolve(), "bytes": _BUFFER_BYTES, "deadline": DEADLINE_S,
                      "start": START_S}]  # fmt: skip
    for kernel in kernels:
        declared, listed = [], []
        for place, word in enumerate(kernel.parameters.split(",")):
            declared.append(f"      {_argument(word.strip(), place)}")
            listed.append("&size" if word.strip() == "int n" else f"&p{place}")
        x, y, z = kernel.block
        parts.append(
            _LAUNCH
            % {
                "name": kernel.name,
                "declared": "\n".join(declared),
                "listed": ", ".join(listed),
                "grid": "4, 4" if y > 1 else "4",
                "block": f"{x}, {y}, {z}",
            }
        )
    return "".join([*parts, _TAIL])


def _argument(word: str, place: int) -> str:
    pointer = _POINTER.match(word)
    if pointer:
        is_const, kind, _ = pointer.groups()
        fill = _FILLS.get(kind.replace("volatile", "").strip(), 0) if is_const else 0
        return f"void* p{place} = buffer({fill});"
    kind, name = word.rsplit(" ", 1)
    return f"{kind} p{place} = {_SCALARS.get(name, '1000')};"
