"""What predictions of a network averaged over transformations cost, and how far off they are."""

import numpy as np
import pytest
import torch
from estimators.laplace.test_lila import make_arcs
from torch import nn

from skbayes_sym import EvidenceAdam, LILAClassifier, LILARegressor, Updates
from skbayes_sym.models import Invariances

SHORT = {
    "hidden_layer_sizes": (8,), "max_iter": 60, "tol": None, "random_state": 0,
    "optimizer": EvidenceAdam(updates=Updates(12)),
}  # fmt: skip


class Turn(nn.Module):
    """Rotation by up to eta."""

    def __init__(self, start):
        super().__init__()
        self.eta = nn.Parameter(torch.tensor([start], dtype=torch.float64))

    def forward(self, x, eps):
        cos, sin = (eps[:, 0] * self.eta).cos(), (eps[:, 0] * self.eta).sin()
        u, v = x.unbind(1)
        return torch.stack([cos * u - sin * v, sin * u + cos * v], 1)


def turned(start, n=100):
    """Half-widths that stay where they start."""
    return Invariances(Turn(start), 4, learning_rate=1e-12, n_predict_augmentations=n)


@pytest.fixture(scope="module")
def arcs():
    X, y = make_arcs(0, n=80)
    return X, np.hypot(*X.T) + 0.05 * np.random.default_rng(0).standard_normal(len(X)), y


def test_one_pass_is_the_network_itself_and_many_are_its_average(arcs):
    X, y, _ = arcs
    reg = LILARegressor(invariances=turned(0.7, 1), **SHORT).fit(X, y)
    theta = torch.as_tensor(reg.posterior_.loc)
    scaled = torch.as_tensor((X - reg.x_mean_) / reg.x_scale_)

    def in_units(outputs):
        return outputs.squeeze(-1).numpy() * reg.y_scale_ + reg.y_mean_

    assert reg.n_predict_augmentations_ == 1
    alone = in_units(reg.network_.forward(theta, scaled))
    np.testing.assert_allclose(reg.predict(X), alone, rtol=1e-10)
    # 4000 strata: as good as the integral over the angle, by the midpoint rule.
    angles = (torch.arange(4000, dtype=torch.float64) + 0.5).mul(2 / 4000).sub(1).reshape(1, -1, 1)
    rows = reg.augmentation_.transform(
        scaled[:5], torch.as_tensor(reg.eta_), angles.repeat(5, 1, 1)
    )
    average = in_units(reg.network_.forward(theta, rows.flatten(0, 1)).reshape(5, -1).mean(1))
    reg.set_params(invariances=turned(0.7, 4000))
    assert reg.n_predict_augmentations_ == 4000
    np.testing.assert_allclose(reg.predict(X[:5]), average, rtol=1e-4)
    assert np.abs(average - alone[:5]).max() > 1e-2


@pytest.mark.long
def test_the_density_comes_with_its_monte_carlo_error(arcs):
    X, y, _ = arcs
    reg = LILARegressor(invariances=turned(0.7, 4), **SHORT).fit(X, y)
    truth = LILARegressor.log_predictive_density(
        reg.set_params(invariances=turned(0.7, 3000)), X, y
    ).sum()
    errors = []
    for n in (4, 64):
        reg.set_params(invariances=turned(0.7, n))
        value, error = reg.estimate_log_predictive_density(X, y, n_repeats=20)
        assert value == pytest.approx(reg.log_predictive_density(X, y).sum(), rel=1e-12)
        errors.append(error)
        # Three standard errors (and their own error after 20 repeats), and the bias of a concave
        # function of a mean, which is of the order of the squared error.
        assert abs(value - truth) < 4.0 * error + 0.02 * abs(truth) / n
    # Independent draws would make it a quarter; strata make it less.
    assert 0.0 < errors[1] < 0.25 * errors[0]
    with pytest.raises(ValueError, match="n_repeats must be an integer of at least 2, got 1"):
        reg.estimate_log_predictive_density(X, y, n_repeats=1)


def test_drawn_logits_count_towards_the_error(arcs):
    X, _, y = arcs
    clf = LILAClassifier(invariances=turned(0.7, 1), predictive=20, **SHORT).fit(X, y)
    assert clf.estimate_log_predictive_density(X, y).standard_error > 0.0
    clf.set_params(predictive="probit")
    assert clf.estimate_log_predictive_density(X, y).standard_error == 0.0


@pytest.mark.long
def test_negligible_half_widths_take_one_pass(arcs):
    X, _, y = arcs
    clf = LILAClassifier(invariances=turned(1e-3), predictive="probit", **SHORT).fit(X, y)
    assert clf.n_predict_augmentations_ == 1
    plain = clf.predict_proba(X)
    clf.set_params(invariances=turned(1e-3, 32))
    # Logits within 1e-3 of each other.
    np.testing.assert_allclose(clf.predict_proba(X), plain, rtol=2e-3)
    assert LILAClassifier(invariances=turned(0.7), **SHORT).fit(X, y).n_predict_augmentations_ == 32
    nothing = LILAClassifier(invariances=None, **SHORT).fit(X, y)
    assert nothing.n_predict_augmentations_ == 1
