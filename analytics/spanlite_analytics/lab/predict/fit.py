"""Fits the steps on measured launches; each kernel's error is of a fit that has not seen it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from spanlite.errors import ServiceError

from spanlite_analytics.lab.predict.features import MEANING, Known
from spanlite_analytics.lab.predict.model import Numbers

#: Shorter launches are as long as the host takes to ask for the next one.
SHORTEST_S = 8e-6
#: Steps in all, and how much of each is believed.
STUMPS, RATE = 200, 0.1
#: Of residuals, for the interval.
LOW, HIGH = 0.05, 0.95
FOLDS = 11


@dataclass(frozen=True, slots=True)
class Measured:
    """One launch: the kernel's family, what was known, and what was measured."""

    family: str
    known: Known
    seconds: float
    occupancy: float


@dataclass(frozen=True)
class Score:
    """Errors in percent, each launch by a fit without its family, and of the baselines."""

    error: Numbers
    baseline: Numbers
    #: Without the fit: the wave's occupancy, the longest of the four bounds.
    unfitted: Numbers
    #: Of the interval that the other families' residuals give.
    covered: float
    residuals: Numbers

    def summary(self) -> dict[str, float]:
        """For the table."""
        return {
            "launches": len(self.error),
            "median_error_pct": _short(float(np.median(self.error))),
            "p90_error_pct": _short(float(np.percentile(self.error, 90))),
            "baseline_median_error_pct": _short(float(np.median(self.baseline))),
            "unfitted_median_error_pct": _short(float(np.median(self.unfitted))),
            "covered_pct": _short(100 * self.covered),
        }


def fit(rows: Sequence[Measured], folds: int = FOLDS) -> tuple[dict[str, Any], Score, Score]:
    """The table, and the scores of time and occupancy.

    Raises ServiceError without scikit-learn.
    """
    names = list(MEANING)
    features = _matrix(rows, names)
    long = np.array([row.seconds >= SHORTEST_S for row in rows])
    groups = np.array([row.family for row in rows])
    seconds = np.array([row.seconds for row in rows])
    bound = np.array([row.known.bound_s for row in rows])
    roofline = np.array([row.known.roofline_s for row in rows])
    occupancy = np.array([row.occupancy for row in rows])
    wave = np.array([row.known.wave_occupancy for row in rows])
    published = np.array([row.known.published_occupancy for row in rows])
    time_score = _score(
        features[long], seconds[long], bound[long], roofline[long], groups[long], folds
    )
    occupancy_score = _score(features, occupancy, wave, published, groups, folds, most=1.0)
    table = {
        "shortest_s": SHORTEST_S,
        "features": {
            name: {
                "is": MEANING[name],
                "from": _short(float(features[:, place].min())),
                "to": _short(float(features[:, place].max())),
            }
            for place, name in enumerate(names)
        },
        "seconds": _table(features[long], np.log(seconds[long] / bound[long]), names, time_score),
        "occupancy": _table(features, np.log(occupancy / wave), names, occupancy_score),
        "hull": _hull(features),
    }
    return table, time_score, occupancy_score


def _matrix(rows: Sequence[Measured], names: list[str]) -> Numbers:
    return np.array([[row.known.features[name] for name in names] for row in rows])


def _trees() -> Any:
    try:
        from sklearn.ensemble import GradientBoostingRegressor
    except ImportError as error:
        raise ServiceError("fitting needs scikit-learn: spanlite-analytics[lab]") from error
    return GradientBoostingRegressor(
        loss="huber", n_estimators=STUMPS, learning_rate=RATE, max_depth=1, random_state=90
    )


def _score(
    features: Numbers,
    measured: Numbers,
    base: Numbers,
    baseline: Numbers,
    groups: NDArray[np.str_],
    folds: int,
    most: float = np.inf,
) -> Score:
    wanted = np.log(measured / base)
    guessed = _unseen(features, wanted, groups, folds)
    predicted = np.minimum(base * np.exp(guessed), most)
    residuals = wanted - guessed
    return Score(
        _percent(predicted, measured),
        _percent(baseline, measured),
        _percent(base, measured),
        _covered(residuals, groups),
        residuals,
    )


def _unseen(features: Numbers, wanted: Numbers, groups: NDArray[np.str_], folds: int) -> Numbers:
    """Each launch's prediction by a fit without any launch of its family."""
    kinds = sorted(set(groups.tolist()))
    fold = np.array([kinds.index(group) % folds for group in groups.tolist()])
    made = np.empty(len(wanted))
    for number in range(min(folds, len(kinds))):
        out = fold == number
        made[out] = _trees().fit(features[~out], wanted[~out]).predict(features[out])
    return made


def _percent(predicted: Numbers, measured: Numbers) -> Numbers:
    return np.asarray(np.abs(predicted / measured - 1) * 100)


def _covered(residuals: Numbers, groups: NDArray[np.str_]) -> float:
    """Share of launches within the interval that the residuals of other families give."""
    inside = np.zeros(len(residuals), np.bool_)
    for group in np.unique(groups):
        own = groups == group
        low, high = np.quantile(residuals[~own], (LOW, HIGH))
        inside[own] = (residuals[own] >= low) & (residuals[own] <= high)
    return float(inside.mean())


def _table(features: Numbers, wanted: Numbers, names: list[str], score: Score) -> dict[str, Any]:
    """One step function for each feature that has a part in it."""
    trees = _trees().fit(features, wanted)
    base = float(trees.init_.constant_.ravel()[0])
    cuts: dict[str, list[tuple[float, float, float]]] = {}
    for (tree,) in trees.estimators_:
        inner = tree.tree_
        if inner.node_count == 1:  # nothing left to divide
            base += RATE * float(inner.value[0].item())
            continue
        left, right = (RATE * float(inner.value[n].item()) for n in (1, 2))
        cuts.setdefault(names[inner.feature[0]], []).append(
            (float(inner.threshold[0]), left, right)
        )
    return {
        "base": base,
        "steps": {name: _steps(cuts[name]) for name in names if name in cuts},
        "interval": [_short(float(q)) for q in np.quantile(score.residuals, (LOW, HIGH))],
        "cross_validation": score.summary(),
    }


def _steps(cuts: list[tuple[float, float, float]]) -> dict[str, list[float]]:
    """`adds[i]` where the feature is at most `up_to[i]`, the last one beyond all."""
    thresholds = sorted({cut[0] for cut in cuts})
    adds = [
        sum(left if at <= threshold else right for threshold, left, right in cuts)
        for at in (*thresholds, np.inf)
    ]
    return {"up_to": thresholds, "adds": [_short(value) for value in adds]}


def _hull(features: Numbers) -> dict[str, Any]:
    """An ellipsoid around the launches."""
    mean = features.mean(axis=0)
    spread = np.cov(features.T) + np.diag(1e-6 + 1e-3 * features.var(axis=0))
    inverse = np.linalg.inv(spread)
    apart = features - mean
    distances = np.sqrt(np.einsum("ij,jk,ik->i", apart, inverse, apart))
    return {
        "mean": [_short(float(v)) for v in mean],
        "inverse": [[_short(float(v)) for v in row] for row in inverse],
        "distance": _short(float(np.quantile(distances, 0.995))),
    }


def _short(value: float) -> float:
    """Five digits: more would not be read."""
    return float(f"{value:.5g}")
