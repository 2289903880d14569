"""Where a fit computes: what "auto" takes, and what it says of it."""

import logging

import numpy as np
import pytest
import torch
from cases import NETWORKS
from fits import MATRIX, NUMBERS, SMALL, X, target
from sklearn.base import clone

from skbayes_sym.estimators._fit import device as device_rule
from skbayes_sym.estimators._fit.device import gradient_flops, resolve_device, worthwhile
from skbayes_sym.models.networks.convolutional import ARCHITECTURES

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
    with caplog.at_level(logging.INFO, logger="skbayes_sym"):
        assert fit(SMALL[name]).device_ == "cpu"
    said = [r.getMessage() for r in caplog.records if "device='auto'" in r.getMessage()]
    (line,) = said
    assert "takes the CPU" in line
    count = float(line.split("about ")[1].split(" ")[0])
    assert 0.0 < count < device_rule.WORTH_A_GPU
    assert "1e+08" in line


@pytest.mark.parametrize("name", ["SymmetrizedVIRegressor", "SymVIMatrixFactorization"])
def test_auto_takes_the_gpu_where_it_pays(name, cuda, caplog, monkeypatch):
    monkeypatch.setattr(device_rule, "WORTH_A_GPU", 10.0)
    with caplog.at_level(logging.INFO, logger="skbayes_sym"):
        there = fit(SMALL[name])
    assert there.device_.startswith("cuda")
    assert "takes the GPU" in caplog.text


def test_who_asks_for_a_device_gets_it(cuda, caplog):
    small = SMALL["BayesianLinearRegressor"]
    with caplog.at_level(logging.INFO, logger="skbayes_sym"):
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
    assert worthwhile("auto", torch.device("cuda"), lambda: flops).type == taken
    assert worthwhile("cuda", torch.device("cuda"), lambda: flops).type == "cuda"
    assert worthwhile("auto", torch.device("cpu"), pytest.fail).type == "cpu"
