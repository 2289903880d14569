"""Where a fit computes, and one that can't fit: it fails before its first array, with a remedy."""

import logging
import re
import sys
import time

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from cases import NETWORKS
from fits import FITS, IMAGES, LABELS, MATRIX, NUMBERS, SMALL, X, fitted, target
from sklearn.base import clone

import skbayes_sym as sk
from skbayes_sym.base import device as device_rule
from skbayes_sym.base.device import choose_device, gradient_flops, resolve_device
from skbayes_sym.base.estimator import is_fitted_attribute
from skbayes_sym.models.networks.convolutional import ARCHITECTURES
from skbayes_sym.numerics import memory

# Too few steps to converge on purpose.
pytestmark = [
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


def fit(estimator):
    rows = MATRIX if target(estimator) is None else X
    return clone(estimator).fit(rows, target(estimator))


@pytest.mark.parametrize("name", [n for n in SMALL if not n.startswith("PredictiveStacking")])
def test_auto_takes_the_cpu_for_small_models_and_says_so_once(name, cuda, caplog):
    with caplog.at_level(logging.DEBUG, logger="skbayes_sym"):
        assert fit(SMALL[name]).device_ == "cpu"
    said = [r.getMessage() for r in caplog.records if "device='auto'" in r.getMessage()]
    (line,) = said
    assert "takes the CPU" in line
    count = float(line.split("about ")[1].split(" ")[0])
    assert 0.0 < count < device_rule.MIN_GPU_FLOPS
    assert "1e+08" in line


@pytest.mark.parametrize("name", ["SymmetrizedVIRegressor", "SymVIMatrixFactorization"])
def test_auto_takes_the_gpu_where_it_pays(name, cuda, caplog, monkeypatch):
    monkeypatch.setattr(device_rule, "MIN_GPU_FLOPS", 10.0)
    with caplog.at_level(logging.DEBUG, logger="skbayes_sym"):
        there = fit(SMALL[name])
    assert there.device_.startswith("cuda")
    assert "takes the GPU" in caplog.text


def test_who_asks_for_a_device_gets_it(cuda, caplog):
    small = SMALL["BayesianLinearRegressor"]
    with caplog.at_level(logging.DEBUG, logger="skbayes_sym"):
        assert clone(small).set_params(device="cuda").fit(X, NUMBERS).device_.startswith("cuda")
        assert clone(small).set_params(device="cpu").fit(X, NUMBERS).device_ == "cpu"
    assert "device=" not in caplog.text


def test_the_remedy_knows_whether_cuda_is_there(cuda, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ValueError, match=r"sees 1 CUDA devices here. Use device='auto' or 'cpu'.$"):
        resolve_device("cuda:1")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="install a CUDA build of torch"):
        resolve_device("cuda")


def test_the_count_is_that_of_matrix_products():
    network = NETWORKS["two-layers-tanh"]
    n_weights = network.layout.n_params  # each once a row, with a sum; twice more backwards
    assert gradient_flops(network, 10) == 6.0 * 10 * n_weights
    assert gradient_flops(network, 10, 4.0) == 4.0 * gradient_flops(network, 10)


def test_a_weight_of_a_convolution_counts_at_every_pixel():
    cnn = ARCHITECTURES["cnn"]((1, 6, 6), 2)
    shapes = cnn.layout.shapes.values()
    weights = sum(np.prod(s) * (36 if len(s) > 2 else 1) for s in shapes)
    assert gradient_flops(cnn, 1) == 6.0 * weights > 6.0 * cnn.layout.n_params


@pytest.mark.parametrize(("flops", "taken"), [(1e8 - 1, "cpu"), (1e8, "cuda"), (1e12, "cuda")])
def test_the_rule(flops, taken):
    assert choose_device("auto", torch.device("cuda"), lambda: flops).type == taken
    assert choose_device("cuda", torch.device("cuda"), lambda: flops).type == "cuda"
    assert choose_device("auto", torch.device("cpu"), pytest.fail).type == "cpu"


# Too few steps to converge on purpose.


@pytest.mark.parametrize("name", FITS)
def test_every_estimator_asks_before_it_starts(name, monkeypatch):
    case = FITS[name]
    monkeypatch.setattr(memory, "available_bytes", lambda device: 50.0)
    monkeypatch.setattr(memory, "SMALL_ALLOCATION", 0)
    model = clone(case.estimator).set_params(device="cpu")
    with pytest.raises(MemoryError) as caught:
        model.fit(case.X, case.y)
    message = str(caught.value)
    assert re.search(r"at least .* GB, but .* GB are free on cpu; [\d,]+ bytes are for ", message)
    remedy = message.split(". ", 1)[1]
    assert "Use fewer" in remedy or any(name in remedy for name in model.get_params())
    assert not [k for k in vars(model) if is_fitted_attribute(k) and not k.endswith("_in_")]


def test_a_refused_fit_leaves_the_previous_one(monkeypatch):
    model = clone(FITS["vi-regressor"].estimator).fit(X, NUMBERS)
    before = model.predict(X)
    monkeypatch.setattr(memory, "available_bytes", lambda device: 50.0)
    monkeypatch.setattr(memory, "SMALL_ALLOCATION", 0)
    with pytest.raises(MemoryError):
        model.fit(X[:, :2], NUMBERS)
    assert np.array_equal(model.predict(X), before)


HUGE = (10**6, 10**6)
SPARSE = sp.coo_matrix((np.ones(3), ([0, 1, 2], [0, 1, 2])), shape=(10**6, 10**6)).tocsr()
ABSURD = {
    "vi": (sk.SymmetrizedVIRegressor(HUGE), X, NUMBERS, "hidden_layer_sizes"),
    "vi-classifier": (sk.SymmetrizedVIClassifier(HUGE), X, LABELS, "hidden_layer_sizes"),
    "vi-laplace": (
        sk.SymmetrizedVIRegressor((10**5,), optimizer=sk.VariationalAdam(init="laplace")),
        X, NUMBERS, "init='random'",
    ),
    "vi-collapsed": (
        sk.LayerwiseVIRegressor(HUGE), X, NUMBERS, "hidden_layer_sizes",
    ),
    "mcmc-draws": (sk.MCMCRegressor((3,), n_draws=10**12), X, NUMBERS, "n_draws"),
    "mcmc-chains": (sk.MCMCClassifier((3,), n_chains=10**12), X, LABELS, "n_chains"),
    "mcmc-weights": (sk.MCMCClassifier(HUGE), X, LABELS, "hidden_layer_sizes"),
    "laplace-full": (
        sk.LaplaceClassifier((2000, 2000), optimizer=sk.EvidenceAdam(curvature="full")), X, LABELS,
        "curvature='auto'",
    ),
    "laplace-kronecker": (sk.LaplaceRegressor((10**6,)), X, NUMBERS, "Use narrower layers"),
    "laplace-modes": (
        sk.LaplaceRegressor((10**6,), optimizer="gauss-newton"), X, NUMBERS, "n_restarts"
    ),
    "laplace-classes": (
        sk.LaplaceClassifier((10**6,), optimizer="gauss-newton"), X, LABELS, "n_restarts"
    ),
    "lila": (sk.LILAClassifier((10**6,), image_shape=(6, 6)), IMAGES, LABELS, "Use narrower"),
    "factors": (sk.SymVIMatrixFactorization(3000), SPARSE, None, "n_components"),
    "linear": (
        sk.BayesianLinearClassifier("categorical"), np.random.default_rng(0).random((900, 900)),
        np.arange(900) // 2, "Use fewer",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ABSURD)
@pytest.mark.filterwarnings("ignore:.*have no observed entry:UserWarning")
@pytest.mark.filterwarnings("ignore:.*all observed entries of X are equal:UserWarning")
def test_absurd_sizes_fail_at_once(name):
    estimator, rows, y, remedy = ABSURD[name]
    start = time.process_time()
    with pytest.raises(MemoryError, match=rf"bytes are for .*{re.escape(remedy)}"):
        estimator.fit(rows, y)
    assert time.process_time() - start < 5.0


@pytest.fixture
def asked(monkeypatch):
    """What the methods ask for, by the first word of each part."""
    found = {}

    def note(parts, device):
        found.update({part.description: part.n_bytes for part in parts})

    for name, module in list(sys.modules.items()):
        if name.startswith("skbayes_sym.") and hasattr(module, "require_memory"):
            monkeypatch.setattr(module, "require_memory", note)
    return found


def n_bytes(found, start):
    (value,) = (v for what, v in found.items() if what.startswith(start))
    return value


@pytest.mark.long
def test_the_curvature_asked_for_is_the_one_that_is_kept(asked):
    case = FITS["laplace-full"]
    model = clone(case.estimator).fit(case.X, case.y)
    assert n_bytes(asked, "the curvature") == 3 * model.posterior_.precision.cholesky.nbytes
    asked.clear()
    case = FITS["lila-cnn"]
    model = clone(case.estimator).fit(case.X, case.y)
    spectra = model.posterior_.precision.spectra
    kept = sum(layer.input_basis.nbytes + layer.output_basis.nbytes for layer in spectra)
    assert n_bytes(asked, "the curvature") == 4 * kept


REGRESSORS = [name for name, case in FITS.items() if hasattr(case.estimator, "sample_y")]


@pytest.mark.parametrize("name", REGRESSORS)
def test_draws_that_cannot_fit_are_refused_at_once(name, monkeypatch):
    model = fitted(name)
    monkeypatch.setattr(type(model), "predictor", None)  # nothing is drawn
    with pytest.raises(MemoryError, match=r"sample_y takes .* for 10,000,000,000 .*n_samples"):
        model.sample_y(FITS[name].X, 10**10)


@pytest.mark.parametrize("name", ["linear-gaussian", "laplace-modes"])
def test_a_covariance_that_cannot_fit_is_refused(name, monkeypatch):
    model = fitted(name)
    monkeypatch.setattr(memory, "available_bytes", lambda device: 50.0)
    monkeypatch.setattr(memory, "SMALL_ALLOCATION", 0)
    with pytest.raises(MemoryError, match=r"return_cov=True takes .* the covariance of 24 rows"):
        model.predict(FITS[name].X, return_cov=True)
