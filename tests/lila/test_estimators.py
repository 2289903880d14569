"""Invariances are found where there are some, and nothing is where there are none."""

from functools import cache

import numpy as np
import pytest
import torch
from scipy import ndimage
from sklearn.base import clone
from sklearn.datasets import load_digits
from thin import some
from torch import nn

from skbayes_sym import (
    Adam,
    EvidenceAdam,
    LaplaceClassifier,
    LILAClassifier,
    LILARegressor,
    Updates,
)
from skbayes_sym.laplace import adam_laplace
from skbayes_sym.laplace.evidence import LaplaceEvidence
from skbayes_sym.models import (
    Affine,
    Augerino,
    Brightness,
    ColumnShift,
    Hue,
    Invariances,
    LogScale,
    Rotation2D,
)

TOY = {
    "hidden_layer_sizes": (20,), "standardize": False,
    "optimizer": EvidenceAdam(curvature="kron-exact", updates=Updates()),
}  # fmt: skip


def updates(**given):
    return {"optimizer": EvidenceAdam(updates=Updates(**given))}


TURNS = Invariances([Rotation2D()], n_augmentations=20)


def make_arcs(seed, n=200, sigma=0.06, arc=120.0):
    """Two rings and a blob, seen over an arc (Immer et al. 2022, appendix J.1)."""
    rng = np.random.default_rng(seed)
    n0 = n // 2
    n_outer = int((n - n0) / 1.5)

    def ring(m, radius):
        t = np.deg2rad(rng.uniform(0.0, arc, m))
        spread = radius + sigma * rng.standard_normal((2, m))
        return np.column_stack([np.cos(t) * spread[0], np.sin(t) * spread[1]])

    blob = sigma * rng.standard_normal((n - n0 - n_outer, 2))
    return np.vstack([ring(n0, 0.5), ring(n_outer, 1.0), blob]), np.repeat([0, 1], [n0, n - n0])


@cache
def without_invariances(seed):
    return LILAClassifier(random_state=seed, invariances=None, **TOY).fit(*make_arcs(seed))


@pytest.mark.long
@pytest.mark.kept("1-exact")
@pytest.mark.parametrize("hyper", ["online", "exact"])
@some("seed", [1, 2, 3], keep={1})
def test_toy_rotation_is_found(seed, hyper):
    """Data over 60 degrees to either side; the evidence of both by the full Gauss-Newton."""
    X, y = make_arcs(seed)
    plain = without_invariances(seed)
    lila = clone(plain).set_params(invariances=TURNS, optimizer__updates__gradient=hyper).fit(X, y)
    angle = np.rad2deg(lila.invariance_["rotation"])
    assert 50.0 <= angle <= 80.0
    assert plain.log_evidence_ > -100.0  # neither has collapsed
    assert lila.stop_reason_ == "tol"
    assert lila.invariance_curve_["rotation"].shape == (lila.n_iter_ // 10,)
    assert full_evidence(lila, X, y) - full_evidence(plain, X, y) >= 4.0
    assert len(lila.log_evidence_curve_) == lila.n_iter_ // 10 - 10  # after the burn-in


def full_evidence(fitted, X, y):
    """Laplace evidence of a fitted model with the full Gauss-Newton matrix."""
    from skbayes_sym.laplace.curvature import Directions, Full
    from skbayes_sym.laplace.evidence import AveragedNetwork, LaplaceEvidence
    from skbayes_sym.models.likelihoods.categorical import Categorical
    from skbayes_sym.models.model import Data

    n_samples = 100 if fitted.invariance_ else 1
    model = AveragedNetwork(fitted.network_, fitted.augmentation_, Categorical(), n_samples)
    data = Data(torch.as_tensor(X), torch.as_tensor(y), torch.ones(len(y), dtype=torch.float64))
    full = Full(model.layers, model.network.layout)
    evidence = LaplaceEvidence(model, data, full, Directions("exact"), 50)
    hyper = torch.as_tensor(np.concatenate([fitted.eta_, -2 * np.log(fitted.prior_scale_)]))
    theta = torch.as_tensor(fitted.posterior_.loc)
    with torch.no_grad():
        sums = evidence.compute_data_sums(theta, hyper, 0)
        precision = evidence.precision(sums.factors, hyper)
        return evidence.evidence(theta, hyper, sums.log_likelihood, precision)[0].value


@pytest.mark.long
def test_translation_of_a_column_that_doesnt_matter():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((80, 2)) * [1.0, 5.0]
    y = np.sin(2 * X[:, 0]) + 0.1 * rng.standard_normal(80)
    reg = LILARegressor(
        (10,),
        invariances=Invariances([ColumnShift(), LogScale(columns=(1,))], learning_rate=0.1),
        random_state=0,
    ).fit(X, y)
    found = reg.invariance_
    assert set(found) == {"translation_0", "translation_1", "log_scale"}
    # Averaged over +-e, sin 2x is sin(2e) / 2e times itself: the weights make up for little, but at
    # e = pi / 2 nothing is left.
    assert found["translation_0"] < np.pi / 4
    assert found["translation_1"] > 2.0  # in the column's own unit
    assert reg.score(X, y) > 0.9


@pytest.mark.long
def test_no_invariance_is_the_laplace_estimator():
    X, y = make_arcs(0)
    params = {"hidden_layer_sizes": (10,), "max_iter": 40, "tol": None, "random_state": 0}
    lila = LILAClassifier(**params, prior=3.0, invariances=None).fit(X, y)
    laplace = LaplaceClassifier(
        optimizer="adam", prior=3.0, predictive=lila.predictive, **params
    ).fit(X, y)
    assert np.array_equal(lila.predict_proba(X), laplace.predict_proba(X))
    assert lila.log_evidence_ == laplace.log_evidence_
    assert lila.invariance_ == {}


def test_the_prior_alone_is_learned_from_the_training_steps(monkeypatch):
    """Only the reported evidence takes a pass over all data of its own, also for LILA."""
    n_passes = 0
    one_pass = LaplaceEvidence.compute_data_sums

    def count(*args):
        nonlocal n_passes
        n_passes += 1
        return one_pass(*args)

    monkeypatch.setattr(LaplaceEvidence, "compute_data_sums", count)
    X, y = make_arcs(0)
    optimizer = EvidenceAdam(batch_size=len(X) // 4, updates=Updates(5, keep_best=False))
    params = {"max_iter": 20, "tol": None, "prior": "learn", "optimizer": optimizer}
    LILAClassifier((4,), invariances=None, random_state=0, **params).fit(X, y)
    assert n_passes == 1


@pytest.mark.long
def test_baselines_are_one_word_away():
    X, y = make_arcs(0)
    base = LILAClassifier(
        (10,), invariances=Invariances([Rotation2D()], 5), max_iter=100, tol=None, random_state=0,
        optimizer=EvidenceAdam(updates=Updates()),
    )  # fmt: skip
    fixed = clone(base).set_params(optimizer__updates__objective="map").fit(X, y)
    assert fixed.invariance_ == {}
    np.testing.assert_allclose(fixed.prior_scale_, 3.0)
    augerino = clone(base).set_params(optimizer__updates__objective=Augerino()).fit(X, y)
    np.testing.assert_allclose(augerino.prior_scale_, 3.0)
    assert augerino.invariance_["rotation"] > 0.1
    greedy = clone(augerino).set_params(optimizer__updates__objective=Augerino(10.0)).fit(X, y)
    assert greedy.invariance_["rotation"] > augerino.invariance_["rotation"]


def small_images(n=60, channels=1):
    rng = np.random.default_rng(0)
    y = np.arange(n) % 2
    images = 0.1 * rng.random((n, channels, 6, 5))
    images[y == 1, :, 2:4] += 1.0
    return images.reshape(n, -1), y


@pytest.mark.long
@pytest.mark.kept("1-mlp", "3-cnn", "3-resnet")
@pytest.mark.parametrize("network", ["mlp", "cnn", "resnet"])
@pytest.mark.parametrize("channels", [1, 3])
def test_images_in_every_network(network, channels):
    X, y = small_images(channels=channels)
    sizes = {"hidden_layer_sizes": (10,)} if network == "mlp" else {}
    clf = LILAClassifier(
        **sizes, image_shape=(6, 5) if channels == 1 else (3, 6, 5), network=network, max_iter=20,
        invariances=Invariances(n_augmentations=3), tol=None, random_state=0, **updates(n=4),
    ).fit(X.astype(np.float32), y)  # fmt: skip
    assert list(clf.invariance_) == [
        "translation_x", "translation_y", "rotation", "scale", "aspect", "shear",
    ]  # fmt: skip
    assert clf.invariance_covariance_.shape == (6, 6)
    assert (np.diff(clf.invariance_direction_amplitudes_) <= 0).all()
    assert clf.score(X, y) > 0.8
    assert np.isfinite(clf.log_evidence_)
    assert clf.x_scale_[0] == X.astype(np.float32).max()


@pytest.mark.long
def test_colours_that_dont_matter_are_found():
    """Pictures of any hue, bright or dark: hue tells nothing, brightness the class."""
    rng = np.random.default_rng(0)
    n = 120
    y = np.arange(n) % 2
    turn = rng.uniform(-np.pi, np.pi, (n, 1)) + 2 * np.pi / 3 * np.arange(3)
    colour = (1.0 + 0.8 * np.cos(turn)) * np.where(y, 1.0, 0.5)[:, None]
    X = (colour[:, :, None] * rng.uniform(0.8, 1.0, (n, 3, 4))).reshape(n, -1)
    clf = LILAClassifier(
        (10,), image_shape=(3, 2, 2), max_iter=300, tol=None, random_state=0, **updates(n=60),
        invariances=Invariances([Hue(), Brightness()], 8, learning_rate=0.15),
    ).fit(X, y)  # fmt: skip
    assert list(clf.invariance_) == ["hue", "brightness"]
    assert clf.invariance_["hue"] > 2.0
    assert clf.invariance_["brightness"] < 0.35  # half of log 2 already confuses the classes


@pytest.mark.long
def test_axis_basis_correlations_and_modules_of_images():
    X, y = small_images()
    module = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Tanh(), nn.Flatten(), nn.Linear(24, 2))
    clf = LILAClassifier(
        network=module, image_shape=(6, 5),
        invariances=Invariances(Affine("axis", correlated=True), 3),
        max_iter=60, optimizer=EvidenceAdam(updates=Updates(n=12)), tol=None, random_state=0,
    ).fit(X, y)  # fmt: skip
    assert {"scale_x", "scale_y"} <= set(clf.invariance_)
    covariance = clf.invariance_covariance_
    np.testing.assert_allclose(
        np.sqrt(3 * np.diag(covariance)), list(clf.invariance_.values()), rtol=1e-10
    )
    assert np.abs(covariance - np.diag(np.diag(covariance))).max() > 0
    large = np.array(list(clf.invariance_.values())) >= 0.1
    assert np.isfinite(clf.invariance_correlation_[np.ix_(large, large)]).all()
    assert np.isnan(clf.invariance_correlation_[~large]).all()
    directions = clf.invariance_directions_
    np.testing.assert_allclose(directions @ directions.T, np.eye(6), atol=1e-10)
    # Mean squared displacements add up: a rotation moves pixels by 2/3 of its squared angle.
    moved = np.array([1, 1, 2 / 3, 1 / 3, 1 / 3, 2 / 3]) @ np.diag(covariance)
    assert (clf.invariance_direction_amplitudes_**2).sum() == pytest.approx(moved)


def test_standardised_coordinates_make_a_rotation_warn():
    X, y = make_arcs(0)
    X = (X - X.mean(0)) / X.std(0)
    clf = LILAClassifier((3,), invariances=[Rotation2D()], max_iter=20, tol=None)
    with pytest.warns(UserWarning, match="look standardised.*raw coordinates"):
        clf.fit(X, y)


@pytest.mark.parametrize("kind", [LILARegressor, LILAClassifier])
@pytest.mark.parametrize("given", ["auto", Invariances(n_augmentations=3)], ids=["auto", "few"])
def test_a_table_without_anything_to_learn_warns(kind, given):
    X, y = make_arcs(0)
    y = y if kind is LILAClassifier else 2.0 * y
    model = kind((3,), invariances=given, max_iter=4, tol=None, **updates(n=2))
    with pytest.warns(UserWarning, match=r"nothing to learn.*without image_shape X is a table"):
        model.fit(X, y)
    assert model.invariance_ == {}
    for quiet in (updates(objective="map"), {"invariances": None}, {"invariances": []}):
        plain = clone(model).set_params(**quiet).fit(X, y).set_params(max_iter="auto")
        assert plain._make_method().max_iter == 3000
    learned = plain.set_params(invariances=[Rotation2D()], **updates(n=2))
    assert learned._make_method().max_iter == 1000


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((12, 6, 5), r"X.reshape\(len\(X\), -1\);.* with image_shape=\(6, 5\)"),
        ((12, 3, 6, 5), r"X.reshape\(len\(X\), -1\);.* with image_shape=\(3, 6, 5\)"),
        ((12, 6, 5, 3), r"np.moveaxis\(X, 3, 1\).reshape.* image_shape=\(3, 6, 5\)"),
    ],
)
def test_images_that_are_no_rows_are_told_of_image_shape(shape, message):
    X, y = np.zeros(shape), np.arange(12) % 2
    for model in (LILARegressor(), LILAClassifier(image_shape=(6, 5)), LaplaceClassifier()):
        with pytest.raises(ValueError, match=message):
            model.fit(X, y)
    rows, _ = small_images(12)
    fitted = LILAClassifier(
        (2,), image_shape=(6, 5), max_iter=2, optimizer=EvidenceAdam(updates=Updates(n=1)), tol=None
    )
    with pytest.raises(ValueError, match=message):
        fitted.fit(rows, y).predict(X)


@pytest.mark.parametrize(("max_iter", "n"), [(10, 3), (11, 4), (7, 7), (9, 100)])
def test_a_last_block_may_be_short(max_iter, n):
    """Its update hears the steps that it has."""
    X, y = make_arcs(0)
    clf = LILAClassifier(
        (3,), invariances=[Rotation2D()], max_iter=max_iter, tol=None,
        optimizer=EvidenceAdam(batch_size=200, updates=Updates(n, burn_in=0.0)),
    ).fit(X, y)  # fmt: skip
    assert clf.n_iter_ == max_iter
    assert len(clf.log_evidence_curve_) == -(-max_iter // max(1, max_iter // n))


def shifted_digits(seed, reach, n=400):
    """Digits in a frame of zeros, shifted by up to ``reach`` pixels in x and y."""
    X, y = load_digits(return_X_y=True)
    rng = np.random.default_rng(seed)
    rows = rng.permutation(len(X))[: 2 * n]
    moved = [
        ndimage.shift(np.pad(X[i].reshape(8, 8), 3), rng.uniform(-reach, reach, 2), order=1).ravel()
        for i in rows
    ]
    X, y = np.array(moved, dtype=np.float32), y[rows]
    return X[:n], y[:n], X[n:], y[n:]


@pytest.mark.long
@some("seed", [0, 1], keep={0})
def test_updates_of_few_rows_dont_follow_their_noise(seed):
    """Every update sees a twentieth of the rows."""
    reach = 2.0
    X, y, X_test, y_test = shifted_digits(0, reach)
    optimizer = EvidenceAdam(
        batch_size=20, learning_rate=0.01, updates=Updates(n=100, keep_best=False)
    )
    clf = LILAClassifier(
        (50,), image_shape=(14, 14), invariances=Invariances(n_augmentations=4), max_iter=200,
        optimizer=optimizer, tol=None, random_state=seed,
    ).fit(X, y)  # fmt: skip
    half_widths = dict(clf.invariance_)
    shifts = [half_widths.pop("translation_x"), half_widths.pop("translation_y")]
    assert max(shifts) < 1.0  # half the frame, where digits leave it
    assert max(half_widths.values()) < 0.1
    assert clf.score(X_test, y_test) > 0.25


@pytest.mark.parametrize("gradient", ["online", "exact"])
@pytest.mark.parametrize("batch_size", [5, 20])
def test_steps_of_half_widths_shrink_with_the_rows_of_an_update(monkeypatch, gradient, batch_size):
    rates = []
    make = adam_laplace.HyperAscent

    def record(evidence, hyper, chosen, *args):
        rates.append(chosen)
        return make(evidence, hyper, chosen, *args)

    monkeypatch.setattr(adam_laplace, "HyperAscent", record)
    X, y = make_arcs(0, n=20)
    clf = LILAClassifier(
        (3,), invariances=[Rotation2D()], max_iter=4, tol=None, random_state=0,
        optimizer=EvidenceAdam(batch_size=batch_size, updates=Updates(4, gradient=gradient)),
    ).fit(X, y)  # fmt: skip
    assert clf.n_iter_ == 4
    fraction = batch_size / len(X) if gradient == "online" else 1.0
    assert rates[0].half_width == pytest.approx(min(0.3, 0.5 * fraction**0.5))


def rotated_digits(seed, n=700, n_test=500):
    X, y = load_digits(return_X_y=True)
    rng = np.random.default_rng(seed)
    rows = rng.permutation(len(X))[: n + n_test]
    turned = [
        ndimage.rotate(X[i].reshape(8, 8), rng.uniform(-180, 180), reshape=False, order=1).ravel()
        for i in rows
    ]
    X, y = np.array(turned, dtype=np.float32), y[rows]
    return X[:n], y[:n], X[n:], y[n:]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_rotation_of_digits_is_found(seed):
    X, y, X_test, y_test = rotated_digits(seed)
    lila = LILAClassifier(
        (100,),
        image_shape=(8, 8),
        optimizer=Adam(learning_rate=0.05),
        invariances=Invariances(learning_rate=0.2),
        tol=None,
        random_state=seed,
    ).fit(X, y)
    plain = clone(lila).set_params(invariances=None).fit(X, y)
    assert lila.score(X_test, y_test) >= plain.score(X_test, y_test) + 0.06
    half_widths = dict(lila.invariance_)
    assert half_widths.pop("rotation") > 2.0
    assert max(half_widths.values()) < 0.3
    assert lila.log_evidence_ > plain.log_evidence_


def scaled_digits(seed, n=700):
    """Both axes stretched by the same factor, between one half and two."""
    X, y = load_digits(return_X_y=True)
    rng = np.random.default_rng(seed)
    rows = rng.permutation(len(X))[:n]
    scaled = []
    for i in rows:
        factor = np.exp(rng.uniform(-np.log(2), np.log(2)))
        offset = 3.5 * (1.0 - factor)
        image = X[i].reshape(8, 8)
        scaled.append(ndimage.affine_transform(image, np.full(2, factor), offset, order=1).ravel())
    return np.array(scaled, dtype=np.float32), y[rows]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_joint_scaling_is_found_as_such(seed):
    """The open problem of section 5.4: by correlating x and y, or by a basis of joint scales."""
    X, y = scaled_digits(seed)

    def fast(families):
        return Invariances(families, learning_rate=0.3)

    apart = LILAClassifier(
        (100,), image_shape=(8, 8), optimizer=Adam(learning_rate=0.05), tol=None,
        invariances=fast(Affine("axis")), random_state=seed,
    ).fit(X, y)  # fmt: skip
    correlated = (
        clone(apart).set_params(invariances=fast(Affine("axis", correlated=True))).fit(X, y)
    )
    joint = clone(apart).set_params(invariances=fast(Affine())).fit(X, y)
    assert correlated.log_evidence_ >= apart.log_evidence_ + 40.0
    assert joint.log_evidence_ >= apart.log_evidence_ + 40.0
    assert correlated.invariance_correlation_[3, 4] > 0.95
    assert joint.invariance_["aspect"] < 0.1


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


def turned(start, n="auto"):
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

    def rescale(outputs):
        return outputs.squeeze(-1).numpy() * reg.y_scale_ + reg.y_mean_

    assert reg.n_predict_augmentations_ == 1
    alone = rescale(reg.network_.forward(theta, scaled))
    np.testing.assert_allclose(reg.predict(X), alone, rtol=1e-10)
    # 4000 strata: as good as the integral over the angle, by the midpoint rule.
    angles = (torch.arange(4000, dtype=torch.float64) + 0.5).mul(2 / 4000).sub(1).reshape(1, -1, 1)
    rows = reg.augmentation_.transform(
        scaled[:5], torch.as_tensor(reg.eta_), angles.repeat(5, 1, 1)
    )
    average = rescale(reg.network_.forward(theta, rows.flatten(0, 1)).reshape(5, -1).mean(1))
    reg.set_params(invariances=turned(0.7, 4000))
    assert reg.n_predict_augmentations_ == 4000
    np.testing.assert_allclose(reg.predict(X[:5]), average, rtol=1e-4)
    assert np.abs(average - alone[:5]).max() > 1e-2


@pytest.mark.long
def test_negligible_half_widths_take_one_pass(arcs):
    X, _, y = arcs
    clf = LILAClassifier(invariances=turned(1e-3), **SHORT).fit(X, y)
    assert clf.n_predict_augmentations_ == 1
    plain = clf.predict_proba(X)
    clf.set_params(invariances=turned(1e-3, 32))
    # Logits within 1e-3 of each other.
    np.testing.assert_allclose(clf.predict_proba(X), plain, rtol=2e-3)
    assert LILAClassifier(invariances=turned(0.7), **SHORT).fit(X, y).n_predict_augmentations_ == 32
    nothing = LILAClassifier(invariances=None, **SHORT).fit(X, y)
    assert nothing.n_predict_augmentations_ == 1
