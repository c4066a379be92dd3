"""NVRTC, through CuPy or cuda-core: source to machine code for one GPU."""

from __future__ import annotations

from functools import cache

from spanlite.errors import ServiceError

from spanlite_replay.targets.gpu.source import source_of

MISSING = (
    "--target gpu compiles its kernels with NVRTC and finds none ({why}): install "
    "'spanlite-replay[cuda13]' (driver 580 and later) or 'spanlite-replay[cuda12]', "
    "or use --target sim, which needs no GPU"
)


@cache
def compiled(registers: int, capability: tuple[int, int]) -> bytes:
    """The module for a class of registers. Raises ServiceError where there is no NVRTC."""
    options = ("--std=c++17", f"--maxrregcount={registers}")
    arch = f"sm_{capability[0]}{capability[1]}"
    problems = []
    for compile_with in (_with_cupy, _with_core):
        try:
            return compile_with(source_of(registers), arch, options)
        except (ImportError, RuntimeError, OSError) as error:
            problems.append(f"{type(error).__name__}: {str(error).splitlines()[:1]}")
    raise ServiceError(MISSING.format(why="; ".join(problems)))


def _with_cupy(source: str, arch: str, options: tuple[str, ...]) -> bytes:
    from cupy.cuda import nvrtc

    program = nvrtc.createProgram(source, "spanlite.cu", (), ())
    try:
        nvrtc.compileProgram(program, (*options, f"--gpu-architecture={arch}"))
        return bytes(nvrtc.getCUBIN(program))
    except nvrtc.NVRTCError as error:
        raise RuntimeError(f"{error}: {nvrtc.getProgramLog(program)}") from error
    finally:
        nvrtc.destroyProgram(program)


def _with_core(source: str, arch: str, options: tuple[str, ...]) -> bytes:
    try:
        from cuda.core import Program, ProgramOptions
    except ImportError:  # before 1.0
        from cuda.core.experimental import Program, ProgramOptions

    registers = int(options[-1].rpartition("=")[2])
    asked = ProgramOptions(std="c++17", arch=arch, max_register_count=registers)
    return bytes(Program(source, code_type="c++", options=asked).compile("cubin").code)
