"""How many units a table gets: decisions, and what they are worth."""

import numpy as np
import pytest
import torch
from habits import Watch
from sklearn.datasets import make_friedman3

from skbayes_sym import BayesianMLPRegressor, GaussNewton, LaplaceRegressor, predictive
from skbayes_sym.estimators.laplace.effort import ModesEffort
from skbayes_sym.estimators.laplace.evidence_method import choose_width
from skbayes_sym.inference.laplace.search.beginnings import HeldOutFold
from skbayes_sym.models import MLP, TANH

NETWORK, EFFORT = MLP(5, (20,), 1, TANH), ModesEffort()


def told(nats, unexplained, priors=("layers",)):
    """What validations say: mean log densities by width, and how far off predictions are.

    A number of nats is any prior's, two are those of ``priors``.
    """
    y = torch.linspace(-1.0, 1.0, 101, dtype=torch.float64).unsqueeze(1)
    noise = torch.as_tensor(np.random.default_rng(0).standard_normal(101))
    noise = noise - noise.mean()
    asked = []

    def validate(width, prior):
        asked.append(width)
        if nats[width] is None:
            return "as it was", None
        mean, value = y * (1.0 - unexplained**0.5), nats[width]
        value = value[priors.index(prior)] if isinstance(value, tuple) else value
        return prior, HeldOutFold(value + (width == 8) * 0.1 * noise, mean)

    weight = torch.ones(101).double()
    return choose_width(validate, priors, NETWORK, y, weight, EFFORT), asked


@pytest.mark.parametrize(
    ("nats", "unexplained", "chosen", "asked"),
    [
        ({3: -1.0, 8: -1.2, 20: -1.1}, 0.5, 3, [3, 8, 20]),
        ({3: -1.0, 8: -1.2, 20: -0.9}, 0.5, 20, [3, 8, 20]),
        ({3: -1.0, 8: -0.998, 20: -1.1}, 0.05, 3, [3, 8, 20]),  # within half a standard error
        ({3: -1.0, 8: -0.9}, 0.05, 20, [3, 8]),  # hardly any noise: not asked
        ({3: -1.0, 8: -0.9, 20: -0.95}, 0.5, 8, [3, 8, 20]),
        ({3: -1.0, 8: -0.9, 20: -0.7}, 0.5, 20, [3, 8, 20]),
    ],
)
def test_more_units_only_where_rows_held_out_say_so(nats, unexplained, chosen, asked):
    widths, in_order = told(nats, unexplained)
    assert widths.chosen == chosen
    assert in_order == asked == list(widths.scores)
    np.testing.assert_allclose(list(widths.scores.values()), [nats[w] for w in asked])
    assert widths.ended is None


@pytest.mark.parametrize(
    ("nats", "unexplained", "chosen", "prior"),
    [
        ({3: -1.0, 8: (-0.9, -0.5), 20: -0.9}, 0.5, 8, "columns"),
        ({3: -1.0, 8: (-0.9, -0.5)}, 0.05, 20, "columns"),  # hardly any noise
        ({3: -1.0, 8: (-0.5, -0.9), 20: -0.9}, 0.5, 8, "layers"),
        ({3: -1.0, 8: (-1.2, -1.1), 20: -1.1}, 0.5, 3, "layers"),  # few units are the better still
        ({3: -1.0, 8: (-1.2, -1.1), 20: -0.9}, 0.5, 20, "columns"),
    ],
)
def test_some_units_decide_between_a_scale_a_layer_and_a_scale_a_column(
    nats, unexplained, chosen, prior
):
    widths, asked = told(nats, unexplained, ("layers", "columns"))
    assert (widths.chosen, widths.prior) == (chosen, prior)
    assert asked == [3, 8, 8, 20][: len(nats) + 1]
    assert widths.scores[8] == pytest.approx(max(nats[8]))
    assert widths.begun == (None if unexplained < 0.1 else prior)


def test_stopped_it_hands_back_what_there_was():
    widths, _ = told({3: -1.0, 8: None}, 0.5)
    assert widths.ended == "as it was"
    assert list(widths.scores) == [3]


def test_only_tables_of_some_rows_are_asked():
    assert EFFORT.asks_width(200, NETWORK)
    assert not EFFORT.asks_width(9, NETWORK)
    assert not EFFORT.asks_width(2_900, NETWORK)
    assert not EFFORT.asks_width(2_000, MLP(200, (20,), 1, TANH))  # it would take long
    assert not EFFORT.asks_width(200, MLP(5, (10,), 1, TANH))


@pytest.mark.long
@pytest.mark.parametrize("Estimator", [LaplaceRegressor, BayesianMLPRegressor])
def test_a_noisy_table_is_given_few_units_and_predicted_better(Estimator):
    X, y = make_friedman3(1_150, noise=0.1, random_state=0)
    fitted = [Estimator(width, random_state=0).fit(X[:150], y[:150]) for width in ("auto", 20)]
    few, usual = fitted
    assert few.network_.hidden_layer_sizes == (3,)
    np.testing.assert_array_equal(few.widths_, [3, 8, 20])
    # Half a standard error of the gain, a mean over 150 rows whose log densities scatter by 1.
    assert max(few.width_scores_) < few.width_scores_[0] + 0.5 / 150**0.5
    densities = [predictive(model, X[150:]).log_prob(y[150:]).mean() for model in fitted]
    assert densities[0] > densities[1] + 0.03
    assert abs(few.width_scores_[0] - densities[0]) < 0.25  # what it promises comes
    assert not hasattr(usual, "width_scores_")


@pytest.mark.parametrize("step", [1, 30])
def test_an_end_while_widths_are_compared_leaves_what_there_is(step):
    X, y = make_friedman3(60, noise=0.1, random_state=0)
    reg = LaplaceRegressor(max_iter=20, tol=None, random_state=0).set_callbacks(Watch(step))
    found = reg.fit(X, y)
    assert found.stop_reason_ == "callback"
    assert found.network_.hidden_layer_sizes == ((3,) if step == 1 else (8,))
    assert len(found.widths_) == (0 if step == 1 else 1)
    assert np.isfinite(found.predict(X)).all()


@pytest.mark.long
def test_scores_are_in_the_units_of_y_and_weights_are_repetitions():
    X, y = make_friedman3(40, noise=0.1, random_state=0)
    weight = np.tile([1.0, 2.0], 20)
    settings = {"optimizer": GaussNewton(2), "max_iter": 15, "tol": None, "random_state": 0}
    weighted = LaplaceRegressor(**settings).fit(X, y, sample_weight=weight)
    repeated = LaplaceRegressor(**settings).fit(
        np.repeat(X, weight.astype(int), 0), np.repeat(y, weight.astype(int))
    )
    np.testing.assert_allclose(weighted.width_scores_, repeated.width_scores_, rtol=1e-9)
    scaled = LaplaceRegressor(**settings).fit(X, 1000.0 * y, sample_weight=weight)
    np.testing.assert_allclose(
        scaled.width_scores_, weighted.width_scores_ - np.log(1000.0), rtol=1e-6
    )


def test_a_clear_table_keeps_twenty_units_and_so_does_a_given_scale():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((150, 3))
    y = np.sin(1.5 * X[:, 0]) + np.cos(2.0 * X[:, 1])
    found = LaplaceRegressor(optimizer=GaussNewton(1), tol=None, max_iter=25, random_state=0).fit(
        X, y
    )
    assert found.network_.hidden_layer_sizes == (20,)
    np.testing.assert_array_equal(found.widths_, [3, 8])
    settings = {"prior": 1.0, "optimizer": GaussNewton(1), "tol": None, "max_iter": 5}
    given = LaplaceRegressor(**settings, random_state=0).fit(X, y)
    assert given.network_.hidden_layer_sizes == (20,)
    assert not hasattr(given, "widths_")
