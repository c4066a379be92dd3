"""A model of a GPU and of the threads that feed it, driven by discrete events.

`fit_model` reads launch cost, gaps and contention off a recording; `simulate` runs a plan's
work on such a model. Deterministic, and in plain Python and numpy.
"""

from spanlite_replay.sim.fit import fit_model
from spanlite_replay.sim.model import GpuModel, Host, known_model
from spanlite_replay.sim.run import Simulated, simulate

__all__ = ["GpuModel", "Host", "Simulated", "fit_model", "known_model", "simulate"]
