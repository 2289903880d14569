"""Parts of a table that stand for the whole; the rest is slow."""

from collections.abc import Collection, Iterable
from itertools import product
from typing import Any

import pytest


def some(name: str, values: Iterable[Any], keep: Collection[Any]) -> pytest.MarkDecorator:
    """One test a value; those not in ``keep`` are slow."""
    rows = [pytest.param(v, id=str(v), marks=[] if v in keep else pytest.mark.slow) for v in values]
    return pytest.mark.parametrize(name, rows)


def pairwise(*tables: dict[str, Any]) -> list[Any]:
    """Rows of a crossed table: those in which every pair of the first two meets are not slow.

    The third table goes round with them, so that each of its entries meets each of the others.
    """
    rows = []
    for keys in product(*tables):
        places = [list(table).index(key) for table, key in zip(tables, keys, strict=True)]
        is_kept = sum(places[:2]) % len(tables[2]) == places[2]
        marks = [] if is_kept else [pytest.mark.slow]
        values = [table[key] for table, key in zip(tables, keys, strict=True)]
        rows.append(pytest.param(*values, id="-".join(keys), marks=marks))
    return rows
