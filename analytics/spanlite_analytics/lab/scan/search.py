"""Which configurations to try next: all of them, random ones, or what a Gaussian process expects.

Each strategy is asked for the next configurations, given the times so far, until it has none.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from spanlite.errors import ServiceError

from spanlite_analytics.lab.scan.space import configurations, encoded, key_of
from spanlite_analytics.lab.scan.spec import Config, Spec

#: Candidates that the model is asked about at a time.
CANDIDATES = 5_000
#: Configurations that a model proposes at a time: they compile side by side.
BATCH = 4


class Strategy(Protocol):
    """How to go through a space."""

    @property
    def total(self) -> int:
        """How many configurations it will have asked for in the end."""
        ...

    def ask(self, times: Mapping[str, float | None]) -> list[Config]:
        """The next configurations, none of which `times` has; an empty list at the end.

        `times`: ns by key of a configuration; None where it failed or was not timed.
        """
        ...


def strategy_of(spec: Spec) -> Strategy:
    """The one that the file names. Raises InputError where its constraints allow nothing."""
    space = configurations(spec)
    if spec.search.method == "bayesian":
        return Bayesian(spec, space)
    order = space
    if spec.search.method == "random":
        random = np.random.default_rng(spec.search.seed)
        order = [space[int(place)] for place in random.permutation(len(space))]
    return Listed(order[: spec.search.budget] if spec.search.budget else order)


class Listed:
    """A list from its start to its end."""

    def __init__(self, order: list[Config]) -> None:
        self._order = order

    @property
    def total(self) -> int:
        """All of the list."""
        return len(self._order)

    def ask(self, times: Mapping[str, float | None]) -> list[Config]:
        """All that are not there."""
        return [config for config in self._order if key_of(config) not in times]


class Bayesian:
    """Expected improvement of the logarithm of time, by a Gaussian process (scikit-learn's).

    Failed configurations count as slow as the slowest, so that their neighbours are avoided. Of
    several asked for at once, each believes the model's guess of those before it.
    """

    def __init__(self, spec: Spec, space: list[Config]) -> None:
        self._spec, self._space = spec, space
        order = np.random.default_rng(spec.search.seed).permutation(len(space))
        self._order = [space[int(place)] for place in order]

    @property
    def total(self) -> int:
        """The budget, or the whole space where that is smaller."""
        return min(self._spec.search.budget, len(self._space))

    def ask(self, times: Mapping[str, float | None]) -> list[Config]:
        """Random ones at first; then where most is to be expected."""
        count = self.total - len(times)
        if count <= 0:
            return []
        left = [config for config in self._order if key_of(config) not in times]
        known = {key: time for key, time in times.items() if time}
        initial = max(self._spec.search.initial - len(times), 0)
        if initial or len(known) < 3:
            return left[: min(count, initial or 1)]
        return self._expected(times, known, left[:CANDIDATES], min(count, BATCH))

    def _expected(
        self,
        times: Mapping[str, float | None],
        known: Mapping[str, float],
        left: list[Config],
        count: int,
    ) -> list[Config]:
        tried = [config for config in self._space if key_of(config) in times]
        worst = math.log(max(known.values()))
        logs = np.array([math.log(known[k]) if (k := key_of(c)) in known else worst for c in tried])
        points, candidates = encoded(self._spec, tried), encoded(self._spec, left)
        chosen: list[Config] = []
        model = _fitted(points, logs)
        while left and len(chosen) < count:
            mean, deviation = model.predict(candidates, return_std=True)
            best = int(np.argmax(expected_improvement(mean, deviation, float(logs.min()))))
            chosen.append(left.pop(best))
            points = np.vstack([points, candidates[best]])
            logs = np.append(logs, mean[best])
            candidates = np.delete(candidates, best, axis=0)
            model = _fitted(points, logs, model.kernel_)
        return chosen


def expected_improvement(
    mean: NDArray[np.float64], deviation: NDArray[np.float64], best: float
) -> NDArray[np.float64]:
    """How far below `best` a value is on average, where it is below; shape of `mean`."""
    from scipy.stats import norm

    deviation = np.maximum(deviation, 1e-12)
    better = best - mean
    z = better / deviation
    return np.asarray(better * norm.cdf(z) + deviation * norm.pdf(z))


def _fitted(points: NDArray[np.float64], logs: NDArray[np.float64], kernel: Any = None) -> Any:
    """A Gaussian process; with a kernel, its length scales are kept."""
    try:
        from sklearn.gaussian_process import GaussianProcessRegressor
        from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel
    except ImportError as error:
        raise ServiceError(
            "a Bayesian scan needs scikit-learn: install spanlite-analytics[lab]"
        ) from error
    fixed = kernel is not None
    if kernel is None:
        scales = np.ones(points.shape[1])
        kernel = ConstantKernel(1.0, (1e-2, 1e2)) * Matern(scales, (0.05, 20.0), nu=2.5)
        kernel += WhiteKernel(1e-3, (1e-6, 1e-1))
    model = GaussianProcessRegressor(
        kernel, normalize_y=True, optimizer=None if fixed else "fmin_l_bfgs_b", random_state=0
    )
    with warnings.catch_warnings():
        # A length scale at its bound is an axis that does not matter: no news.
        warnings.simplefilter("ignore")
        return model.fit(points, logs)
