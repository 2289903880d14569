"""No call of the package changes the state of the program around it, in any number of threads."""

import logging
import os
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from fits import FITS, X
from sklearn.base import clone, is_classifier
from sklearn.linear_model import LinearRegression

import skbayes_sym as sk
from skbayes_sym.model_selection import compare_models
from skbayes_sym.numerics.runtime import filters_lock

pytestmark = [
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]

FAST = {"linear-gaussian", "vi-regressor"}
ALL_FITS = [pytest.param(name, marks=[] if name in FAST else pytest.mark.long) for name in FITS]
N_THREADS = 3


def host_state():
    """Return what belongs to the program: a value to compare with another one."""
    logger = logging.getLogger("skbayes_sym")
    return {
        "warning filters": (id(warnings.filters), list(warnings.filters)),
        "NumPy's random state": [np.asarray(part).tolist() for part in np.random.get_state()],  # noqa: NPY002
        "torch's random state": torch.get_rng_state().tolist(),
        "environment": dict(os.environ),
        "default dtype": torch.get_default_dtype(),
        "threads": torch.get_num_threads(),
        "gradients": (torch.is_grad_enabled(), torch.is_inference_mode_enabled()),
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "floating-point errors": np.geterr(),
        "print options": np.get_printoptions(),
        "logging": (logging.root.level, list(logging.root.handlers), logger.level,
                    list(logger.handlers)),
    }  # fmt: skip


@pytest.fixture
def unguarded_filters(monkeypatch):
    """Collect the places where this package lets the warning filters be replaced unlocked.

    Whether two threads that overlap leave changed filters behind is a matter of luck; this isn't.
    """
    places = set()
    enter = warnings.catch_warnings.__enter__

    def checked(context):
        frame = sys._getframe(1)
        while frame is not None and not str(frame.f_globals.get("__name__")).startswith(
            "skbayes_sym"
        ):
            frame = frame.f_back
        if frame is not None and not filters_lock._is_owned():
            places.add(f"{frame.f_code.co_filename}:{frame.f_lineno}")
        return enter(context)

    monkeypatch.setattr(warnings.catch_warnings, "__enter__", checked)
    return places


def use(name, folder):
    """Fit without a seed, predict, query the distribution, save and load."""
    case = FITS[name]
    model = clone(case.estimator).set_params(random_state=None).fit(case.X, case.y)
    if hasattr(model, "predict_entries"):
        model.predict_entries([0, 1], [2, 3], return_std=True)
        model.score(case.X)
        model.recommend([0], 2)
        model.transform(case.X)
    else:
        model.predict(case.X)
        model.score(case.X, case.y)
        distribution = sk.predictive(model, case.X)
        distribution.log_prob(case.y)
        if not is_classifier(model):
            distribution.sample(2, random_state=None)
            model.sample_y(case.X, random_state=None)
    path = folder / "model.skbayes"
    try:
        sk.save(model, path)
    except TypeError:  # torch modules of one's own can't be saved
        return
    sk.load(path)


@pytest.mark.parametrize("name", ALL_FITS)
def test_state_of_the_program_survives_calls_in_several_threads(name, tmp_path, unguarded_filters):
    folders = [tmp_path / str(i) for i in range(N_THREADS)]
    for folder in folders:
        folder.mkdir()
    before = host_state()
    with ThreadPoolExecutor(N_THREADS) as pool:
        list(pool.map(use, [name] * N_THREADS, folders))
    after = host_state()
    assert unguarded_filters == set()
    assert after == before


@pytest.mark.long
@pytest.mark.parametrize("kind", ["numbers", "labels"])
def test_state_of_the_program_survives_comparisons_in_threads(kind, unguarded_filters):
    case = FITS["vi-ard" if kind == "numbers" else "vi-classifier"]
    linear = sk.BayesianLinearRegressor() if kind == "numbers" else sk.BayesianLinearClassifier()
    models = {"network": clone(case.estimator).set_params(random_state=None), "linear": linear}
    before = host_state()
    with ThreadPoolExecutor(N_THREADS) as pool:
        jobs = [
            pool.submit(compare_models, models, X, case.y, cv=2, random_state=None)
            for _ in range(N_THREADS)
        ]
        tables = [job.result() for job in jobs]
    assert host_state() == before
    assert unguarded_filters == set()
    assert all(np.isfinite(table["log_density"]).all() for table in tables)


@pytest.mark.long
def test_a_users_own_estimator_warns_inside_a_stack():
    """Warnings of the built-in members are dropped, not those of a user's estimator."""

    class Warner(LinearRegression):
        def fit(self, X, y, sample_weight=None):
            warnings.warn("of the user's own", RuntimeWarning, stacklevel=2)
            return super().fit(X, y, sample_weight)

    stack = sk.PredictiveStackingRegressor([("own", Warner()), ("line", "linear")], random_state=0)
    with pytest.warns(RuntimeWarning, match="of the user's own"):
        stack.fit(X, FITS["linear-gaussian"].y)


def test_own_warnings_are_collected_in_one_thread_only():
    from skbayes_sym.base.messages import collect_warnings, warn_user

    with collect_warnings() as collected, ThreadPoolExecutor(1) as pool:
        warn_user("here", RuntimeWarning)
        with pytest.warns(RuntimeWarning, match="elsewhere"):
            pool.submit(warn_user, "elsewhere", RuntimeWarning).result()
    assert collected == [(RuntimeWarning, "here")]
    with pytest.warns(RuntimeWarning, match="after"):
        warn_user("after", RuntimeWarning)


@pytest.mark.parametrize("random_state", [None, 0])
def test_fresh_entropy_and_seeds(random_state):
    """None is fresh entropy each time, not NumPy's global generator; a seed repeats."""
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    distribution = sk.predictive(sk.BayesianLinearRegressor().fit(X, X[:, 0]), X)
    first, second = (distribution.sample(1, random_state=random_state) for _ in range(2))
    assert np.array_equal(first, second) == (random_state is not None)
    assert np.array_equal(np.random.get_state()[1], before)  # noqa: NPY002


def logged(caplog, verbose):
    """Records of a fit, as a program sees them whose root logger shows everything."""
    caplog.clear()
    model = clone(FITS["vi-regressor"].estimator).set_params(verbose=verbose)
    with caplog.at_level(logging.DEBUG):
        model.fit(X, FITS["vi-regressor"].y)
    return {record.levelname for record in caplog.records if record.name == "skbayes_sym"}


def test_silent_fits_log_nothing_above_debug(caplog, capsys):
    assert logged(caplog, 0) == {"DEBUG"}
    assert capsys.readouterr().err == ""
    assert logged(caplog, 1) == {"INFO"}
    shown = capsys.readouterr().err
    assert "[skbayes_sym]" in shown
    assert "training ELBO" not in shown
    assert logged(caplog, 2) == {"INFO", "DEBUG"}
    assert "training ELBO" in capsys.readouterr().err


@pytest.mark.long
@pytest.mark.parametrize("kind", ["numbers", "labels"])
def test_a_silent_stack_is_silent(kind, caplog, capsys):
    case = FITS[f"stack-{kind}"]
    with caplog.at_level(logging.DEBUG):
        clone(case.estimator).set_params(verbose=0).fit(case.X, case.y)
    assert {r.levelno for r in caplog.records if r.name == "skbayes_sym"} <= {logging.DEBUG}
    assert capsys.readouterr().err == ""
