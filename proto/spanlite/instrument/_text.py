"""Texts of ranges from what an application gives. Nothing here raises."""

from __future__ import annotations


def clean(value: object) -> str:
    """A value without what has a meaning in a range's text."""
    if type(value) is not str:
        try:
            value = str(value)
        except Exception:  # an application's own `__str__`
            value = type(value).__name__
    return value.replace(";", ",").replace("\0", "")


def fields(attributes: dict[str, object]) -> str:
    """`;NAME=VALUE` of each."""
    return "".join(
        f";{clean(name).replace('=', '_')}={clean(value)}" for name, value in attributes.items()
    )
