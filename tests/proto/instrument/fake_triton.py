"""The part of Triton that its hooks touch, as Triton 3.4 has it: compile, load, launch."""

import sys
import types
from collections import namedtuple

Info = namedtuple("Info", "module name jit_function")


class HookChain:
    def __init__(self):
        self.calls = []

    def add(self, hook):
        self.calls.append(hook)

    def remove(self, hook):
        self.calls.remove(hook)

    def __call__(self, *args, **kwargs):
        for call in self.calls:
            call(*args, **kwargs)


class LazyDict:
    def __init__(self, data):
        self.data = data

    def get(self):
        raise AssertionError("computes what the kernel's author says of a launch")


class Kernel:
    def __init__(self, name, digest, handle):
        self.name, self.hash, self.handle, self.function = name, digest, handle, None


class JITFunction:
    handles = 1000

    def __init__(self, fn):
        self.fn, self.__name__ = fn, fn.__name__
        self.arg_names = list(fn.__code__.co_varnames[: fn.__code__.co_argcount])
        self.device_caches = {0: ({}, {})}

    def warm_up(self, **constants):
        key = str(constants)
        cache = self.device_caches[0][0]
        if key not in cache:
            JITFunction.handles += 1
            cache[key] = Kernel(self.__name__, f"hash of {key}", JITFunction.handles)
            paths = {(self.arg_names.index(k),): v for k, v in constants.items()}
            info = {"key": key, "device": 0, "constants": paths, "num_warps": 4, "num_stages": 3}
            hook = knobs.runtime.jit_post_compile_hook
            if hook is not None:
                hook(
                    key=key, repr="", fn=Info("m", self.__name__, self), compile=info,
                    is_manual_warmup=False, already_compiled=False,
                )  # fmt: skip
        return cache[key]

    def launch(self, fail=False, **constants):
        kernel, runtime = self.warm_up(**constants), knobs.runtime
        if kernel.function is None:
            kernel.function = kernel.handle
            runtime.kernel_load_end_hook(object(), kernel.function, kernel.name, {}, kernel.hash)
        said = LazyDict({"name": kernel.name, "function": kernel.function, "stream": 7})
        runtime.launch_enter_hook(said)
        if fail:
            raise RuntimeError("out of resources")
        runtime.launch_exit_hook(said)


knobs = types.SimpleNamespace(
    runtime=types.SimpleNamespace(
        launch_enter_hook=HookChain(),
        launch_exit_hook=HookChain(),
        kernel_load_end_hook=HookChain(),
        jit_post_compile_hook=None,
    )
)
sys.modules["triton"] = sys.modules[__name__]
