"""The driver API's structures that a graph's nodes are described with, for ctypes."""

from __future__ import annotations

import ctypes

_P, _U32, _U64, _SIZE = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint64, ctypes.c_size_t


class Work(ctypes.Structure):
    """`Work` in source.py."""

    _fields_ = [
        ("stamp", _U64),
        ("length", _U64),
        ("hold", _U64),
        ("origin", _U64),
        ("due", _U64),
        ("steer", _U64),
        ("rate1024", _U64),
        ("scratch", _U64),
        ("moved16", _U64),
        ("scratch16", _U64),
        ("per_wave", _U32),
        ("waves", _U32),
        ("never", _U32),
    ]


class KernelNode(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS_v2."""

    _fields_ = [
        ("function", _P),
        ("grid", _U32 * 3),
        ("block", _U32 * 3),
        ("shared_bytes", _U32),
        ("arguments", ctypes.POINTER(_P)),
        ("extra", _P),
        ("kernel", _P),
        ("context", _P),
    ]


class End(ctypes.Structure):
    """One side of CUDA_MEMCPY3D."""

    _fields_ = [
        ("x", _SIZE),
        ("y", _SIZE),
        ("z", _SIZE),
        ("lod", _SIZE),
        ("kind", ctypes.c_int),
        ("host", _P),
        ("device", _U64),
        ("array", _P),
        ("reserved", _P),
        ("pitch", _SIZE),
        ("height", _SIZE),
    ]


class Copy(ctypes.Structure):
    """CUDA_MEMCPY3D."""

    _fields_ = [
        ("source", End),
        ("target", End),
        ("width", _SIZE),
        ("rows", _SIZE),
        ("depth", _SIZE),
    ]


class Memset(ctypes.Structure):
    """CUDA_MEMSET_NODE_PARAMS."""

    _fields_ = [
        ("target", _U64),
        ("pitch", _SIZE),
        ("value", _U32),
        ("element", _U32),
        ("width", _SIZE),
        ("rows", _SIZE),
    ]


class LaunchAttribute(ctypes.Union):
    """CUlaunchAttributeValue."""

    _fields_ = [("cluster", _U32 * 3), ("room", ctypes.c_char * 64)]
