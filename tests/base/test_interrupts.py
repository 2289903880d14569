"""Ctrl-C at every stage of every estimator: it arrives, and what was trained is kept."""

import inspect
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import numpy as np
import pytest
from fits import FITS, SMALL, everything_predicted, fitted
from habits import Watch
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

import skbayes_sym
from skbayes_sym.base.estimator import BayesianEstimator
from skbayes_sym.bayesian_mlp import fit as pool
from skbayes_sym.laplace import initialization as beginnings
from skbayes_sym.variational import fit as vi_method

_PACKAGE = str(Path(skbayes_sym.__file__).parent)


class Counter:
    """Counts calls of the package's functions in the ``with`` block; raises at one of them.

    A generator isn't counted: its frame is entered once more where Python closes it, and what is
    raised there Python reports and drops, whoever wrote it.

    Parameters
    ----------
    strike : int, optional
        The call at which a `KeyboardInterrupt` comes; never without.
    """

    def __init__(self, strike: int | None = None) -> None:
        self.strike, self.n_calls = strike, 0

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event != "call" or code.co_flags & inspect.CO_GENERATOR:
            return
        if not code.co_filename.startswith(_PACKAGE):
            return
        self.n_calls += 1
        if self.n_calls == self.strike:
            sys.setprofile(None)
            raise KeyboardInterrupt

    def __enter__(self) -> "Counter":
        sys.setprofile(self)
        return self

    def __exit__(self, *error: object) -> None:
        sys.setprofile(None)


def n_calls(work: Callable[[], object]) -> int:
    """How many calls there are to strike at."""
    with Counter() as counter:
        work()
    return counter.n_calls


pytestmark = [
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
    pytest.mark.filterwarnings("ignore:.*no observed entry"),
    pytest.mark.filterwarnings("ignore:.*evidence:UserWarning"),
]

FIRST = {next(k for k, c in FITS.items() if c.estimator is e): e for e in SMALL.values()}
SLOW_ONES = {
    "bayesian-mlp-growing-noise", "bayesian-mlp-two-classes", "mcmc-regressor", "mcmc-classifier",
}  # some tenths of a second each  # fmt: skip


class FitsSeen(Watch):
    """Counts the blocks after which callbacks can see a fit."""

    def __init__(self) -> None:
        super().__init__()
        self.n_fits = 0

    def on_fit_task_end(self, estimator, context, *, fitted_estimator=None):
        self.n_fits += fitted_estimator is not None
        return super().on_fit_task_end(estimator, context)


def assert_kept(name, strike, n):
    """One interrupt, at call ``strike`` of about ``n``."""
    case, watch = FITS[name], FitsSeen()
    model = clone(case.estimator).set_callbacks(watch)
    with Counter(strike) as counter:
        try:
            model.fit(case.X, case.y)
        except KeyboardInterrupt:
            pass
        else:
            assert counter.n_calls < strike, "swallowed"
            return
    if not model.__sklearn_is_fitted__():
        assert watch.n_fits == 0, "trained, and lost"
        return
    at_the_end = strike > 0.8 * n and model.stop_reason_ != "interrupted"  # steps had ended
    assert model.stop_reason_ == (fitted(name).stop_reason_ if at_the_end else "interrupted")
    for key, values in everything_predicted(model, case.X).items():
        assert np.asarray(values).dtype.kind != "f" or np.isfinite(values).all(), key


def strikes(name, how_many):
    case = FITS[name]
    n = n_calls(lambda: clone(case.estimator).set_callbacks(Watch()).fit(case.X, case.y))
    return n, np.unique(np.linspace(0.02 * n, n - 1, how_many).astype(int)).tolist()


@pytest.mark.long
@pytest.mark.kept("[!b]*", "bayesian-mlp-growing-noise")
@pytest.mark.parametrize("name", FIRST)
def test_wherever_it_strikes(name):
    n, places = strikes(name, 2 if name in SLOW_ONES else 4)
    for place in places:
        assert_kept(name, place, n)


def interrupted_fit(name):
    """Of a case whose fit is struck somewhere: the interrupt arrives, and there is a model."""
    case = FITS[name]
    model = clone(case.estimator)
    with pytest.raises(KeyboardInterrupt):
        model.fit(case.X, case.y)
    assert model.stop_reason_ == "interrupted"
    return model


STEPS = [
    "vi-regressor", "vi-classifier", "ensemble-regressor", "laplace-kronecker", "lila-table",
    "linear-counts", "mcmc-regressor", "factors", "laplace-modes", "laplace-classes",
]  # fmt: skip


@pytest.mark.parametrize("name", STEPS)
def test_the_warning_says_after_how_many_steps_and_is_the_caller_s(name):
    n, _ = strikes(name, 1)
    model = clone(FITS[name].estimator)
    with (
        pytest.warns(ConvergenceWarning, match="interrupted after") as caught,
        Counter(n // 2),
        pytest.raises(KeyboardInterrupt),
    ):
        model.fit(FITS[name].X, FITS[name].y)
    (warning,) = [w for w in caught if "interrupted" in str(w.message)]
    assert warning.filename == __file__  # the line that called `fit`
    steps = int(re.search(r"after (\d+) steps", str(warning.message))[1])
    assert (model.stop_reason_, model.n_iter_) == ("interrupted", steps)


def interrupted(*args, **kwargs):
    raise KeyboardInterrupt


def test_a_second_one_while_finishing_keeps_what_was_trained(monkeypatch):
    """Bounds that were interrupted are NaN."""
    case = FITS["vi-regressor"]
    monkeypatch.setattr(vi_method, "_evaluate_bounds", interrupted)
    model = interrupted_fit("vi-regressor")
    assert np.isnan([model.elbo_, model.elbo_mean_field_, model.symmetry_gap_]).all()
    assert model.n_iter_ == 20
    monkeypatch.undo()
    whole = clone(case.estimator).fit(case.X, case.y)
    assert np.array_equal(model.predict(case.X), whole.predict(case.X))


def test_one_before_the_first_step_keeps_the_previous_fit_or_none():
    case = FITS["vi-regressor"]
    model = clone(case.estimator)
    with pytest.raises(KeyboardInterrupt), Counter(30):
        model.fit(case.X, case.y)
    assert not [name for name in vars(model) if name.endswith("_")]
    before = model.fit(case.X, case.y).predict(case.X)
    with pytest.raises(KeyboardInterrupt), Counter(30):
        model.fit(case.X, -case.y)
    assert np.array_equal(model.predict(case.X), before)


ROWS = sorted(n for n in FIRST if FITS[n].y is not None and n[:5] != "stack")


@pytest.mark.long
@pytest.mark.kept("linear-gaussian", "laplace-kronecker", "vi-regressor")
@pytest.mark.parametrize("name", ROWS)
def test_one_after_the_last_step_loses_nothing(name, monkeypatch):
    """Neither do fits in closed form, which have no steps."""
    case = FITS[name]
    keep, first = BayesianEstimator._set_fit, iter([interrupted])
    monkeypatch.setattr(BayesianEstimator, "_set_fit", lambda *args: next(first, keep)(*args))
    model = interrupted_fit(name)
    whole = clone(case.estimator).fit(case.X, case.y)
    assert np.array_equal(model.predict(case.X), whole.predict(case.X))


def test_one_between_two_searches_keeps_the_best_mode(monkeypatch):
    """Of a classification network, whose modes are searched one after the other."""
    kept = []

    def struck(problem, search):
        kept.append(search)
        raise KeyboardInterrupt

    monkeypatch.setattr(beginnings, "misfit_per_row", struck)
    model = interrupted_fit("laplace-classes")
    assert model.log_evidence_modes_.tolist() == kept[0].modes.log_evidence.tolist()
    assert np.isfinite(model.predict_proba(FITS["laplace-classes"].X)).all()


@pytest.mark.parametrize(
    ("name", "owner"),
    [
        ("bayesian-mlp-growing-noise", pool.RegressionPool),
        ("bayesian-mlp-two-classes", pool.ClassificationPool),
    ],
)
def test_a_pool_s_linear_model_can_be_interrupted(name, owner, monkeypatch):
    """It comes last, and may have no share: the interrupt arrives, and the networks are kept."""
    linear = owner.linear_method

    class Struck(NamedTuple):
        method: object

        def fit(self, data, model, progress):
            monkeypatch.setattr(progress, "end_block", interrupted)
            return self.method.fit(data, model, progress)

    monkeypatch.setattr(
        owner, "linear_method", lambda *args, **settings: Struck(linear(*args, **settings))
    )
    model = interrupted_fit(name)
    assert model.linear_weight_ == 0.0
    model.predict(FITS[name].X)
