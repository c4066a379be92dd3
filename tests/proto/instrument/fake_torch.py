"""The part of PyTorch that the probes touch: hooks of modules, tables, the backward pass."""

import sys
import types

#: Number of the backward pass that runs now; -1: none.
in_backward = -1


class Handle:
    def __init__(self, hooks, hook):
        self.hooks, self.hook = hooks, hook

    def remove(self):
        self.hooks.remove(self.hook)


class Module:
    def __init__(self, *inner):
        self.before, self.after, self.inner = [], [], inner

    def register_forward_pre_hook(self, hook):
        self.before.append(hook)
        return Handle(self.before, hook)

    def register_forward_hook(self, hook):
        self.after.append(hook)
        return Handle(self.after, hook)

    def __call__(self):
        for hook in self.before:
            hook(self, ())
        for module in self.inner:
            module()
        for hook in self.after:
            hook(self, (), None)


class Model:
    """Its modules by their paths."""

    def __init__(self, modules):
        self.modules = modules

    def named_modules(self):
        return self.modules.items()


class Table:
    def __init__(self, top):
        self.top = top

    def max(self):
        return self.top


sys.modules["torch"] = types.SimpleNamespace(
    _C=types.SimpleNamespace(_current_graph_task_id=lambda: in_backward),
    cuda=types.SimpleNamespace(is_current_stream_capturing=lambda: False),
)
