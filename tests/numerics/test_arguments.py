"""Every refusal names the argument, what is expected and what was given."""

import numpy as np
import pytest

from skbayes_sym.numerics.arguments import (
    check_arrays,
    check_count,
    check_flag,
    check_name,
    check_names,
    check_number,
    check_random_state,
    draw_seed,
    short_repr,
    unique_classes,
)


@pytest.mark.parametrize("value", [0, -1, 2.0, True, None, "3", np.nan])
def test_counts(value):
    assert check_count("n", np.int64(3)) == 3
    with pytest.raises(ValueError, match=r"^n must be an int of at least 1, got "):
        check_count("n", value)
    with pytest.raises(ValueError, match=r"^n must be an int from 1 to 2, got 3"):
        check_count("n", 3, maximum=2)


@pytest.mark.parametrize("value", [-0.1, np.nan, np.inf, True, None, "3", 1j])
def test_numbers(value):
    assert check_number("x", np.float32(0.5), 0.0) == 0.5
    with pytest.raises(ValueError, match=r"^x must be a finite number of at least 0, got "):
        check_number("x", value, 0.0)


def test_random_states_are_those_of_scikit_learn():
    assert draw_seed(3) == np.random.RandomState(3).randint(2**31 - 1)
    given = np.random.RandomState(0)
    assert check_random_state(given) is given
    assert isinstance(check_random_state(None), np.random.RandomState)
    for value in (-1, 2**32, True, "x", 0.5, np.random.default_rng(0)):
        with pytest.raises(ValueError, match=r"^random_state must be an int .* got "):
            draw_seed(value)


def test_axes_agree():
    shapes = {"x": "n", "y": "nq", "pairs": "n2?"}
    found = check_arrays("D", shapes, x=[1, 2], y=np.zeros((2, 3)), pairs=None)
    assert found.keys() == {"x", "y"}
    for wrong, message in [
        ({"x": 1.0}, r"^D: x must be numbers of shape \(n,\), got shape \(\)"),
        ({"x": [1, 2], "y": np.zeros((3, 3))}, r"^D: y .* shape \(2, q\), got shape \(3, 3\)"),
        ({"pairs": np.zeros((4, 3))}, r"^D: pairs .* shape \(4, 2\), got shape \(4, 3\)"),
        ({"x": None}, r"^D: x must be numbers of shape \(n,\), got None"),
        ({"x": "words"}, r"^D: x must be numbers of shape \(n,\), got 'words'"),
        ({"x": [[1], [1, 2]]}, r"^D: x must be numbers"),
    ]:
        with pytest.raises(ValueError, match=message):
            check_arrays("D", shapes, **wrong)


def test_a_name_a_flag_and_labels():
    assert check_name("D", "name", "a") == "a"
    assert check_name("D", "name", None, "b") == "b"
    with pytest.raises(ValueError, match=r"^D: name must be a string or None, got array"):
        check_name("D", "name", np.zeros(2))
    assert check_flag("spaced", np.True_) is True
    for value in (1, "yes", None, np.zeros(2)):
        with pytest.raises(ValueError, match=r"^spaced must be True or False, got "):
            check_flag("spaced", value)
    assert unique_classes(np.array(["b", "a", "b"])).tolist() == ["a", "b"]
    with pytest.raises(TypeError, match=r"^y must hold labels of one kind, got \[1, 'a'\]"):
        unique_classes(np.array([1, "a"], dtype=object), "y")


def test_complex_numbers_are_no_numbers():
    with pytest.raises(ValueError, match=r"^D: x must be numbers of shape"):
        check_arrays("D", {"x": "n"}, x=np.ones(2) + 1j)


def test_names_and_long_values():
    assert check_names("D", "names", ("a", "b"), 2) == ["a", "b"]
    for value in ("ab", 3, ["a"], [1, 2]):
        with pytest.raises(ValueError, match=r"^D: names must be 2 strings, got "):
            check_names("D", "names", value, 2)
    assert len(short_repr("a" * 1000)) == 63
