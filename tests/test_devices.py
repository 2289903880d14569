"""The axis of devices: everything computes on a GPU what it computes on the CPU.

Where there is no GPU the pretend device stands for it (`pretend_cuda`): its random streams are the
CPU's, so figures must agree to 1e-9, drawn ones too. A real GPU draws other numbers: there figures
without noise must agree to 1e-6, and of fits this is compared: what the model that was fitted on
the GPU predicts there, and on the CPU after moving, to 1e-6; everything is finite, of one shape.

Fits of seconds, whose parts shorter ones have, are `python -m pytest -m slow`.
"""

import pickle
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from cases import GAPS, LIKELIHOODS
from fits import FITS, NUMBERS, SMALL, X, everything_predicted, fitted, target
from mcmc.known_densities import AutogradPosterior
from sklearn.base import clone
from torch import Tensor

from skbayes_sym import HMC, Annealing, VariationalAdam, load, save
from skbayes_sym.mcmc import kernels
from skbayes_sym.mcmc.kernels import initial_state
from skbayes_sym.models.likelihoods import noise
from skbayes_sym.numerics import memory
from skbayes_sym.numerics.preconditioners import DiagonalPreconditioner
from skbayes_sym.numerics.random import generator_from
from skbayes_sym.numerics.runtime import constant

# Too few steps to converge on purpose.
pytestmark = [
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]

REAL = torch.version.cuda is not None  # where streams differ
TOLERANCE = 1e-6 if REAL else 1e-9
# Chains share a block by device, and so a stream: of as many as one block has, both are one.
ALIKE: dict[str, dict[str, Any]] = {
    "mcmc-annealed": {
        "n_chains": 4,
        "sampler__n_warmup": 8,
        "sampler__init": Annealing(2, 3, n_settle=2),
    }
}
LONG = {
    "mcmc-annealed", "mcmc-evidence", "bayesian-mlp-ard", "bayesian-mlp",
    "bayesian-mlp-classes", "factors-ordinal", "factors-learned", "laplace-two-classes",
    "linear-many-features", "linear-three", "ensemble-refitted-learned-scales", "lila-pixels",
    "vi-collapsed-ard",
}  # seconds, and parts that shorter ones have  # fmt: skip


def assert_close(got: Any, expected: Any, name: str = "") -> None:
    got, expected = np.asarray(got), np.asarray(expected)
    assert got.shape == expected.shape, name
    assert got.dtype == expected.dtype, name
    if got.dtype.kind not in "fc":
        assert np.array_equal(got, expected), name
        return
    tol = 1e-4 if got.dtype == np.float32 and REAL else TOLERANCE
    np.testing.assert_allclose(got, expected, rtol=tol, atol=tol, err_msg=name)


def assert_all_close(got: dict[str, Any], expected: dict[str, Any]) -> None:
    assert got.keys() == expected.keys()
    for name, values in expected.items():
        assert_close(got[name], values, name)


def figures_of(model: Any) -> dict[str, Any]:
    """Fitted numbers and arrays of them: evidences, bounds, gaps, draws, weights."""
    kept = {k: v for k, v in vars(model).items() if k.endswith("_") and k[0] != "_"}
    return {
        k: v for k, v in kept.items()
        if isinstance(v, float) or (isinstance(v, np.ndarray) and v.dtype.kind == "f")
    }  # fmt: skip


def moved(model: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The model in a process without a GPU."""
    payload = pickle.dumps(model)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    return pickle.loads(payload)


@cache
def fitted_there(name: str) -> Any:
    """On the device, as compared with a fit on the CPU; read only.

    Lengths of trajectories come from the device's stream, as on the CPU, and not from the host's.
    """
    case = FITS[name]
    there = clone(case.estimator).set_params(device="cuda", **ALIKE.get(name, {}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "sample_host_uniforms", lambda n, generator: torch.rand(
            n, generator=generator, device=generator.device, dtype=torch.float64
        ).tolist())  # fmt: skip
        return there.fit(case.X, case.y)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n in LONG else n for n in FITS]
)
def test_a_fit_is_the_same_and_moves(name, cuda, monkeypatch):
    estimator, rows, y = FITS[name]
    changed = ALIKE.get(name, {})
    if "anneal" in name:  # whose chains double any rounding at every step
        monkeypatch.setattr(noise, "collapsed_weight", lambda weight: weight)
    there = fitted_there(name)
    assert there.device_.startswith("cuda")
    predicted = everything_predicted(there, rows)
    if not REAL:
        here = fitted(name)
        if changed:
            here = clone(estimator).set_params(device="cpu", **changed).fit(rows, y)
        assert here.device_ == "cpu"
        assert_all_close(figures_of(there), figures_of(here))
        assert_all_close(predicted, everything_predicted(here, rows))
    elsewhere = moved(there, monkeypatch)
    assert_all_close(everything_predicted(elsewhere, rows), predicted)
    assert_all_close(everything_predicted(there, rows), predicted)  # the same object, too


# The first of each class.
FIRST = [next(n for n, case in FITS.items() if case.estimator is e) for e in SMALL.values()]


@pytest.mark.parametrize("name", FIRST)
def test_a_file_of_one_device_is_read_on_the_other(name, cuda, tmp_path, monkeypatch):
    rows, there = FITS[name].X, fitted_there(name)
    expected = everything_predicted(there, rows)
    save(there, tmp_path / "model")
    assert_all_close(everything_predicted(load(tmp_path / "model"), rows), expected)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert_all_close(everything_predicted(load(tmp_path / "model"), rows), expected)


def warm_start(estimator: Any) -> dict[str, Any]:
    """Parameters that make a fit go on; empty where none does."""
    if type(estimator).__name__.startswith("SymmetrizedVI"):
        return {"optimizer": VariationalAdam(warm_start=True)}
    return {n: True for n in ("warm_start", "sampler__warm_start") if n in estimator.get_params()}


WARM = [n for n, e in SMALL.items() if warm_start(e)]


def warm(name: str, *devices: str) -> Any:
    """Fitted on one device after the other."""
    model = clone(SMALL[name])
    model.set_params(**warm_start(model))
    for device in devices:
        model.set_params(device=device).fit(X, target(model))
    return model


@cache
def warm_here(name: str) -> Any:
    """On the CPU twice; read only."""
    return warm(name, "cpu", "cpu")


@pytest.mark.long
@pytest.mark.kept("cpu-cuda-[!M]*", "*-MCMCRegressor", "cuda-cpu-SymmetrizedVI*")
@pytest.mark.parametrize("name", WARM)
@pytest.mark.parametrize(("first", "second"), [("cpu", "cuda"), ("cuda", "cpu")])
def test_a_warm_start_goes_on_on_the_other_device(name, first, second, cuda):
    found = warm(name, first, second)
    assert found.device_.startswith(second)
    if name.startswith("MCMC"):  # a stream can't go on elsewhere: another one, the same each time
        again = warm(name, first)
        before = again.samples_
        again.set_params(device=second).fit(X, target(again))
        assert np.array_equal(found.samples_, again.samples_)
        assert not np.array_equal(found.samples_, before)
        assert np.isfinite(found.samples_).all()
    elif not REAL:
        assert_all_close(figures_of(found), figures_of(warm_here(name)))


@pytest.mark.parametrize(
    ("full", "said"), [("cuda", r"on cuda.* of 3 features"), ("cpu", "on cpu.* chains of")]
)
def test_memory_is_asked_of_the_device_that_holds_it(full, said, cuda, monkeypatch):
    free = {"cpu": 1e12, "cuda": 1e12, full: 50.0}
    monkeypatch.setattr(memory, "available_bytes", lambda device: free[device.type])
    monkeypatch.setattr(memory, "SMALL_ALLOCATION", 0)
    model = clone(FITS["mcmc-regressor"].estimator)
    with pytest.raises(MemoryError, match=said):
        model.set_params(device="cuda").fit(X, NUMBERS)
    if full == "cuda":
        model.set_params(device="cpu").fit(X, NUMBERS)


def _noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=generator_from(seed), dtype=torch.float64)


def _likelihood(name: str, device: str) -> dict[str, Any]:
    case = LIKELIHOODS[name]
    outputs = _noise(3, 6, case.n_outputs).to(device)
    y = case.targets(6, generator_from(3)).to(device)
    likelihood = case.likelihood.to(outputs)
    mean, variance = outputs[0], 0.1 + outputs[1].square()
    noise = _noise(6, likelihood.n_noise(case.n_outputs), seed=4).to(device)
    predictive = likelihood.predictive(outputs)
    found = {
        "log_prob": likelihood.log_prob(outputs, y),
        "root": likelihood.hessian_root(mean, y),
        "predictive": predictive.log_prob(y),
        "sample": predictive.sample(3, np.random.default_rng(0)),
    }
    expected = likelihood.expected_log_prob(mean, variance, y, noise)
    return found | {k: v for k, v in expected._asdict().items() if torch.is_tensor(v)}


def _gap(name: str, device: str) -> dict[str, Any]:
    gap, posterior = GAPS[name]
    if isinstance(posterior, tuple):  # of tensors; one of arrays is itself
        posterior = type(posterior)(*(t.to(device) for t in posterior))
    estimate = gap.estimate(posterior, 8, generator=generator_from(8, device))
    gradient = gap.value_and_gradients(posterior, generator=generator_from(9, device))
    return {"value": np.array(estimate.value), **gradient._asdict()}


@pytest.mark.parametrize(
    ("figures", "name"), [(_likelihood, n) for n in LIKELIHOODS] + [(_gap, n) for n in GAPS]
)
def test_a_noun_computes_the_same(figures, name, cuda):
    """Of the fits above some have each of the other nouns."""
    expected, got = (
        {k: v.detach().cpu().numpy() if torch.is_tensor(v) else v for k, v in f.items()}
        for f in (figures(name, device) for device in ("cpu", "cuda"))
    )
    if REAL and figures is _gap:  # drawn from a stream of the device
        assert all(np.isfinite(v).all() for v in got.values())
    else:
        assert_all_close(got, expected)


@pytest.mark.skipif(REAL, reason="a real GPU doesn't count")
def test_the_pretend_device_refuses_and_counts(cuda):
    """Negative control: what a GPU refuses is refused, and waits and uploads are seen."""
    x = torch.arange(12.0, device="cuda").view(3, 4)
    for mixed in (lambda: x + torch.ones(4), lambda: torch.cat([x, torch.ones(1, 4)])):
        with pytest.raises(RuntimeError, match=r"same device|multi-device"):
            mixed()
    with pytest.raises(RuntimeError, match=r"generator|same device"):
        torch.randn(3, generator=torch.Generator("cuda"))
    with pytest.raises(TypeError, match="convert cuda:0 device type tensor to numpy"):
        x.numpy()
    with cuda.trace() as seen:
        x[x > 0].sum().item()
        made = [constant((1.25, -7.5), torch.float64, x.device) for _ in range(3)]
    assert seen.waits == {"_local_scalar_dense": 1, "nonzero": 1}
    assert sum(seen.uploads.values()) == 1
    assert made[0] is made[2]


@pytest.mark.skipif(REAL, reason="a real GPU doesn't count")
def test_a_move_waits_for_its_length_alone(cuda):
    device = torch.device("cuda")
    target = AutogradPosterior(3, lambda at: -0.5 * at.square().sum(1), lambda at: 0.0 * at[:, 0])
    state = initial_state(torch.ones(4, 3, dtype=torch.float64, device=device), target)
    with cuda.trace() as seen:
        HMC().step(
            state, target, step_size=torch.full_like(state.value, 0.05),
            preconditioner=DiagonalPreconditioner(torch.ones_like(state.position)),
            generator=torch.Generator(device).manual_seed(0),
        )  # fmt: skip
    assert sum(seen.waits.values()) == 1
    assert sum(seen.kernels.values()) > 20 * sum(seen.waits.values())
