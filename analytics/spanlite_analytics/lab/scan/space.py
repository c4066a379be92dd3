"""The configurations that a scan's constraints allow."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from spanlite.errors import InputError

from spanlite_analytics.lab.scan.expression import Scalar
from spanlite_analytics.lab.scan.spec import Config, Spec

#: More configurations than this are drawn from, not listed.
MOST_LISTED = 100_000


def key_of(config: Mapping[str, Scalar]) -> str:
    """A configuration's identity."""
    return json.dumps(dict(sorted(config.items())))


def configurations(spec: Spec) -> list[Config]:
    """All that the constraints allow, in the file's order; of a huge space a random part.

    Raises InputError where none is allowed, or a constraint cannot be evaluated.
    """
    total = math.prod(len(values) for values in spec.parameters.values())
    source = _all(spec) if total <= MOST_LISTED else _drawn(spec)
    try:
        found = [config for config in source if spec.allows(config)]
    except ValueError as error:
        raise InputError(f"{spec.name}: constraint {error}") from None
    if not found:
        raise InputError(f"{spec.name}: the constraints allow none of {total:,} configurations")
    return found


def _all(spec: Spec) -> Iterator[Config]:
    names = list(spec.parameters)
    for values in itertools.product(*spec.parameters.values()):
        yield dict(zip(names, values, strict=True))


def _drawn(spec: Spec) -> Iterator[Config]:
    random = np.random.default_rng(spec.search.seed)
    seen = set()
    for _ in range(MOST_LISTED):
        config = {
            name: values[int(random.integers(len(values)))]
            for name, values in spec.parameters.items()
        }
        key = key_of(config)
        if key not in seen:
            seen.add(key)
            yield config


def encoded(spec: Spec, configs: Sequence[Config]) -> NDArray[np.float64]:
    """Configurations as points of the unit cube, shape (configurations, axes).

    Numbers by their logarithm where all are positive, since tiles double; strings one axis each.
    """
    columns = []
    for name, values in spec.parameters.items():
        if len(values) == 1:
            continue
        given = [config[name] for config in configs]
        if isinstance(values[0], str):
            columns += [[float(g == value) for g in given] for value in values[1:]]
            continue
        numbers = np.array([float(v) for v in values])
        column = np.array([float(g) for g in given])
        if (numbers > 0).all():
            numbers, column = np.log2(numbers), np.log2(column)
        low, high = numbers.min(), numbers.max()
        columns.append(((column - low) / (high - low)).tolist())
    return np.array(columns, np.float64).T.reshape(len(configs), len(columns))
