"""Docstrings that say "as in" are written out."""

import inspect

import pytest

import skbayes_sym
from skbayes_sym.base.shared_docstrings import WORDS, in_full


class _Plain:
    """Toy.

    Parameters
    ----------
    verbose, device : as in every estimator
        Here too.
    tol : float, default=1
        Its own.

    Attributes
    ----------
    x_mean_, x_scale_, device_ : as in every estimator

    See Also
    --------
    tol : Something else.
    """

    def __init__(self, verbose: int = 3, device: str = "cpu", tol: float = 1.0) -> None:
        pass


class _Other:
    """Toy.

    Parameters
    ----------
    tol : as in Toy
    """

    def __init__(self, tol: float = 0.5) -> None:
        pass


def toy(doc: str | None, kind: type = _Plain, name: str = "Toy") -> type:
    return type(name, (kind,), {"__doc__": doc})


def test_entries_are_written_out_in_order_with_own_defaults() -> None:
    lines = (in_full(toy(_Plain.__doc__)).__doc__ or "").splitlines()
    assert [line for line in lines if " : " in line] == [
        "verbose : int, default=3", 'device : str, default="cpu"', "tol : float, default=1",
        "x_mean_, x_scale_ : ndarray of shape (n_features,)", "device_ : str",
        "tol : Something else.",
    ]  # fmt: skip
    assert lines[lines.index('device : str, default="cpu"') + 2] == "    Here too."
    assert not any("as in" in line for line in lines)


def test_an_entry_of_another_class() -> None:
    in_full(toy(_Plain.__doc__))
    doc = in_full(toy(_Other.__doc__, _Other, "OtherToy")).__doc__ or ""
    assert "tol : float, default=0.5\n    Its own." in doc


@pytest.mark.parametrize("line", ["nothing_ : as in every estimator", "tol : as in NoSuchClass"])
def test_an_entry_that_isnt_there_is_an_error(line: str) -> None:
    with pytest.raises(ValueError, match="isn't described in"):
        in_full(toy(f"Toy.\n\n{line}\n"))


def test_no_docstrings_are_no_error() -> None:
    assert in_full(toy(None)).__doc__ is None  # as under python -OO


def test_every_shared_entry_is_used() -> None:
    docs = [inspect.getdoc(getattr(skbayes_sym, name)) or "" for name in skbayes_sym.__all__]
    assert not any(" : as in " in doc for doc in docs)
    entries = [line for doc in WORDS.values() for line in doc.splitlines() if line[:1].strip()]
    for names in (line.split(" : ")[0].split(", ") for line in entries):
        assert all(any(f"{name} : " in doc or f"{name}, " in doc for doc in docs) for name in names)
