"""One letter for a replay, and the rule it follows."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """What a grade asks for; all of it must hold."""

    makespan_pct: float
    start_p99_us: float
    #: p95 of |duration error| / max(1 %, 1 us).
    duration_of_limit: float
    #: Broken edges of stream order, launches and dependencies, as a share of all.
    violations: float
    #: Share of the planned device spans that ran, by count and by time, each.
    coverage: float


#: Best first; what meets none of them is F.
RULE: dict[str, Limits] = {
    "A": Limits(1, 20, 1, 0, 1),
    "B": Limits(3, 100, 3, 0, 0.99),
    "C": Limits(10, 1_000, 10, 0.001, 0.9),
    "D": Limits(25, 10_000, 25, 0.01, 0.5),
}
WORST = "F"


@dataclass(frozen=True)
class Grade:
    """The letter, and the measures that kept it from being a better one."""

    letter: str
    because: list[str]


def grade(
    makespan_pct: float | None,
    start_p99_us: float | None,
    duration_of_limit: float | None,
    violations: float,
    coverage: float,
) -> Grade:
    """The best grade all of whose limits hold. A measure that is None holds; nothing that
    ran is F."""
    if not coverage:
        return Grade(WORST, ["nothing of the plan was observed"])
    values = {
        "makespan error": (abs(makespan_pct or 0), "makespan_pct", " %"),
        "start error p99": (start_p99_us or 0, "start_p99_us", " us"),
        "duration error p95": (
            duration_of_limit or 0,
            "duration_of_limit",
            " times max(1 %, 1 us)",
        ),
        "order violations": (violations, "violations", " of the edges"),
        "coverage": (-coverage, "coverage", ""),
    }
    because: list[str] = []
    for letter, limits in RULE.items():
        failed = []
        for title, (value, name, unit) in values.items():
            limit = getattr(limits, name)
            if title == "coverage":
                if -value < limit:
                    failed.append(f"coverage {-value:.4g}, {letter} asks for {limit:g}")
            elif value > limit:
                failed.append(f"{title} {value:.4g}{unit}, {letter} allows {limit:g}")
        if not failed:
            return Grade(letter, because)
        because = failed
    return Grade(WORST, because)
