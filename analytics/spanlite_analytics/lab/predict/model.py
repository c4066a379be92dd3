"""The fitted model as it is kept: a table of steps for each feature, and what it may be asked."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spanlite_analytics.lab.predict.features import MEANING, Known

Numbers = NDArray[np.float64]
TABLE = Path(__file__).parent / "h200.json"


@dataclass(frozen=True, slots=True)
class Guess:
    """A number, and between what it lies in 9 of 10 cases by cross-validation."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Prediction:
    """What is predicted of a launch, and why it may be wrong."""

    occupancy: Guess
    seconds: Guess
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class Steps:
    """A sum of step functions, one a feature; `values` has one entry more than `thresholds`."""

    base: float
    thresholds: dict[str, Numbers]
    values: dict[str, Numbers]
    #: Residuals within which 9 of 10 cases lie.
    low: float
    high: float

    @classmethod
    def read(cls, table: dict[str, Any]) -> Steps:
        """From the table."""
        steps = table["steps"]
        return cls(
            table["base"],
            {name: np.array(step["up_to"]) for name, step in steps.items()},
            {name: np.array(step["adds"]) for name, step in steps.items()},
            *table["interval"],
        )

    def at(self, features: dict[str, Numbers]) -> Numbers:
        """The sum for each case."""
        first = next(iter(features.values()))
        total = np.full(np.shape(first), self.base)
        for name, thresholds in self.thresholds.items():
            # The trees were grown on 32-bit numbers.
            place = np.searchsorted(thresholds, features[name].astype(np.float32), side="left")
            total = total + self.values[name][place]
        return total


@dataclass(frozen=True)
class Model:
    """Both targets, and the cases they were fitted on."""

    about: dict[str, Any]
    names: tuple[str, ...]
    lowest: Numbers
    highest: Numbers
    mean: Numbers
    inverse: Numbers
    distance: float
    seconds: Steps
    occupancy: Steps
    #: Launches below were left out of the fit of time.
    shortest: float

    @classmethod
    def read(cls, table: dict[str, Any]) -> Model:
        """From the table that `fit` makes."""
        features, hull = table["features"], table["hull"]
        return cls(
            table["about"],
            tuple(features),
            np.array([row["from"] for row in features.values()]),
            np.array([row["to"] for row in features.values()]),
            np.array(hull["mean"]),
            np.array(hull["inverse"]),
            hull["distance"],
            Steps.read(table["seconds"]),
            Steps.read(table["occupancy"]),
            table["shortest_s"],
        )

    def predict(self, known: Known) -> Prediction:
        """Occupancy and time of a launch."""
        features = {name: np.array(value) for name, value in known.features.items()}
        seconds = known.bound_s * float(np.exp(self.seconds.at(features)))
        occupancy = known.wave_occupancy * float(np.exp(self.occupancy.at(features)))
        warnings = self.outside(known)
        if seconds * float(np.exp(self.seconds.low)) < self.shortest:
            warnings.append(
                f"times below {self.shortest * 1e6:.0f} us were not fitted: there the host's "
                "pace of launching decides"
            )
        return Prediction(
            _guess(min(occupancy, 1.0), self.occupancy, most=1.0),
            _guess(seconds, self.seconds),
            tuple(warnings),
        )

    def outside(self, known: Known) -> list[str]:
        """Features beyond what was measured, or a mix of them that was not."""
        values = np.array([known.features[name] for name in self.names])
        # The table keeps five digits.
        size = np.abs(self.highest) + np.abs(self.lowest)
        slack = 1e-6 + 1e-4 * size + 0.01 * (self.highest - self.lowest)
        beyond = (values < self.lowest - slack) | (values > self.highest + slack)
        said = [self._beyond(int(place), float(values[place])) for place in np.flatnonzero(beyond)]
        apart = values - self.mean
        away = float(np.sqrt(max(float(apart @ self.inverse @ apart), 0.0)))
        if away > self.distance:
            said.append(
                f"no such mix was measured: it is {away:.1f} from their middle, and 99.5 % of "
                f"them lie within {self.distance:.1f}"
            )
        return said

    def _beyond(self, place: int, value: float) -> str:
        name = self.names[place]
        numbers = [value, float(self.lowest[place]), float(self.highest[place])]
        if name.startswith("log_"):
            numbers = [float(np.exp(number)) for number in numbers]
        now, low, high = (f"{number:.3g}" for number in numbers)
        return f"{name.removeprefix('log_')} ({MEANING[name]}): {now}; the fit saw {low} to {high}"


def _guess(value: float, steps: Steps, most: float = np.inf) -> Guess:
    low, high = float(np.exp(steps.low)), float(np.exp(steps.high))
    return Guess(value, value * low, min(value * high, most))


@lru_cache
def fitted() -> Model:
    """The model that comes with the package: an H200's."""
    return Model.read(json.loads(TABLE.read_text()))
