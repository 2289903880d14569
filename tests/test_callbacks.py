"""Held-out rows stop a fit, and the best state comes back."""

import logging
import re

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_diabetes

pytest.importorskip("sklearn.callback")

from skbayes_sym import DeepEnsembleRegressor, SymmetrizedVIClassifier, SymmetrizedVIRegressor
from skbayes_sym.callbacks import HeldOut

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

X, Y = load_diabetes(return_X_y=True)
TRAIN, TEST = slice(0, 60), slice(60, 160)
# Without a prior to hold it this one fits its 60 rows and forgets the others.
GREEDY = DeepEnsembleRegressor(
    (50,), n_members=1, max_iter=400, tol=None, prior=100.0, noise_std=20.0, random_state=0
)


def watched(model, **settings):
    watch = HeldOut(X[TEST], Y[TEST], **settings)
    return watch, clone(model).set_callbacks(watch).fit(X[TRAIN], Y[TRAIN])


def density(model):
    return model.log_predictive_density(X[TEST], Y[TEST]).mean()


def test_the_best_block_comes_back():
    watch, best = watched(GREEDY, patience=5)
    assert best.stop_reason_ == "callback"
    assert len(watch.scores_) < 100
    assert int(np.argmax(watch.scores_)) == len(watch.scores_) - 1 - 5
    assert density(best) == pytest.approx(watch.best_score_)
    _, last = watched(GREEDY, patience=5, restore_best=False)
    assert density(last) == pytest.approx(watch.scores_[-1])
    assert density(best) > density(last)
    whole = clone(GREEDY).fit(X[TRAIN], Y[TRAIN])
    assert density(best) > density(whole)


def test_a_fit_that_keeps_improving_is_left_alone():
    slow = SymmetrizedVIRegressor((3,), max_iter=60, tol=None, random_state=0)
    watch, found = watched(slow, patience=100)
    alone = clone(slow).fit(X[TRAIN], Y[TRAIN])
    assert found.stop_reason_ == "max_iter"
    assert watch.best_score_ == max(watch.scores_)
    if watch.scores_[-1] == watch.best_score_:
        np.testing.assert_array_equal(found.predict(X[TEST]), alone.predict(X[TEST]))


def test_classes_too():
    labels = Y > 140
    watch = HeldOut(X[TEST], labels[TEST], patience=2)
    model = SymmetrizedVIClassifier((3,), tol=None, random_state=0).set_callbacks(watch)
    model.fit(X[TRAIN], labels[TRAIN])
    found = model.log_predictive_density(X[TEST], labels[TEST]).mean()
    assert found == pytest.approx(watch.best_score_, abs=1e-6)


def test_patience_is_checked():
    with pytest.raises(ValueError, match="patience must be a positive number of blocks, got 0"):
        HeldOut(X, Y, patience=0)


def test_the_log_says_after_the_first_block_how_long_it_may_take(caplog):
    with caplog.at_level(logging.INFO, logger="skbayes_sym"):
        SymmetrizedVIRegressor((2,), max_iter=200, tol=None, random_state=0).fit(X[:50], Y[:50])
    told = re.findall(r"first of (\d+) blocks: (\S+) s, so up to (\S+) s in all", caplog.text)
    assert len(told) == 1  # once a fit
    blocks, first, whole = (float(number) for number in told[0])
    assert blocks == 100
    assert whole == pytest.approx(100 * first, rel=0.1)  # both have two digits
