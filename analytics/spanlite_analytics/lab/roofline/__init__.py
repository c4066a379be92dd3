"""Bytes and FLOPs of kernels, and how far each stands from what the GPU can do."""

from spanlite_analytics.lab.roofline.ceilings import GPUS, Ceilings, ceilings_of, measured_h200
from spanlite_analytics.lab.roofline.counted import work_counted
from spanlite_analytics.lab.roofline.place import Place, Point, place
from spanlite_analytics.lab.roofline.work import Call, Work, attention_tile, work_of

__all__ = [
    "GPUS",
    "Call",
    "Ceilings",
    "Place",
    "Point",
    "Work",
    "attention_tile",
    "ceilings_of",
    "measured_h200",
    "place",
    "work_counted",
    "work_of",
]
