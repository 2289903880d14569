"""Training loops of other packages, as their documentation shows, for `compare_peers`.

A loop takes a case and returns what makes so many steps: float32, Adam, a N(0, 1) prior and, for
regression, unit observation noise. A package that isn't installed is an `ImportError`.
"""

import itertools
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))  # benchmarks

import torch
from benchmarks.common import Case, Run, network, random_data, training
from torch import Tensor, nn
from torch.nn import functional as F

LEARNING_RATE = 1e-3
OURS, TEXTBOOK = "ours, mean-field", "textbook nn.Module, LRT"
FUSED, DEFAULT = "deterministic torch, fused Adam", "deterministic torch, default Adam"


def batches(case: Case, n_steps: int, x: Tensor, y: Tensor) -> Any:
    """The batches of all loops that draw their own: shuffled each epoch, full ones only."""
    if case.batch_size >= case.n_rows:
        yield from ((x, y) for _ in range(n_steps))
        return
    n_left = n_steps
    while n_left:
        order = torch.randperm(case.n_rows)
        for rows in order.split(case.batch_size)[: min(n_left, case.n_rows // case.batch_size)]:
            yield x[rows], y[rows]
            n_left -= 1


def log_loss(case: Case, outputs: Tensor, y: Tensor) -> Tensor:
    """Mean negative log likelihood of a batch, up to a constant."""
    return F.cross_entropy(outputs, y) if case.is_classification else 0.5 * F.mse_loss(outputs, y)


def stacked(case: Case, linear: Callable[[int, int], nn.Module]) -> nn.Sequential:
    """A ReLU network of the given kind of layer."""
    modules: list[nn.Module] = []
    for n_in, n_out in itertools.pairwise(network(case).sizes):
        modules += [linear(n_in, n_out), nn.ReLU()]
    return nn.Sequential(*modules[:-1])


def adam_loop(
    case: Case,
    model: nn.Module,
    loss: Callable[[Tensor, Tensor], Tensor],
    *,
    fused: bool | None = None,
) -> Run:
    """The usual loop of torch: zero_grad, loss(x, y), backward, step."""
    x, y = random_data(case)
    optimiser = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE, fused=fused)

    def run(n_steps: int) -> None:
        for x_batch, y_batch in batches(case, n_steps, x, y):
            optimiser.zero_grad()
            loss(x_batch, y_batch).backward()
            optimiser.step()

    return run


def elbo_loop(case: Case, model: nn.Module, kl: Callable[[], Tensor]) -> Run:
    """The same with the KL divergence spread over the rows."""
    return adam_loop(
        case, model, lambda x, y: log_loss(case, model(x), y) + kl() * (1.0 / case.n_rows)
    )


def deterministic(case: Case, *, fused: bool | None) -> Run:
    """An ordinary network, with the one-kernel Adam that ours has or with torch's default."""
    model = stacked(case, nn.Linear)
    return adam_loop(case, model, lambda x, y: log_loss(case, model(x), y), fused=fused)


class LocalReparametrisation(nn.Module):
    """What one writes first: the layer of Kingma, Salimans & Welling (2015), prior N(0, 1)."""

    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__()
        self.mean = nn.Parameter(torch.randn(n_out, n_in) / n_in**0.5)
        self.rho = nn.Parameter(torch.full((n_out, n_in), -4.0))
        self.bias_mean = nn.Parameter(torch.zeros(n_out))
        self.bias_rho = nn.Parameter(torch.full((n_out,), -4.0))

    def forward(self, x: Tensor) -> Tensor:
        variance = F.softplus(self.rho) ** 2
        mean = F.linear(x, self.mean, self.bias_mean)
        sd = F.linear(x**2, variance, F.softplus(self.bias_rho) ** 2).sqrt()
        return mean + sd * torch.randn_like(mean)

    def kl(self) -> Tensor:
        total = torch.zeros(())
        for mean, rho in ((self.mean, self.rho), (self.bias_mean, self.bias_rho)):
            sd = F.softplus(rho)
            total = total + (0.5 * (sd**2 + mean**2 - 1.0) - sd.log()).sum()
        return total


def textbook(case: Case) -> Run:
    """Local reparametrisation with nn.Module, autograd and torch.optim."""
    model = stacked(case, LocalReparametrisation)
    layers = [m for m in model if isinstance(m, LocalReparametrisation)]
    return elbo_loop(case, model, lambda: torch.stack([m.kl() for m in layers]).sum())


def scikit_learn(case: Case) -> Run:
    """MLPClassifier or MLPRegressor, `fit` for the epochs that hold the steps."""
    from sklearn.neural_network import MLPClassifier, MLPRegressor

    x, y = (t.numpy() for t in random_data(case))
    make = MLPClassifier if case.is_classification else MLPRegressor

    def run(n_steps: int) -> None:
        n_epochs = max(1, n_steps // -(-case.n_rows // case.batch_size))
        model = make(
            hidden_layer_sizes=case.hidden,
            batch_size=case.batch_size,
            max_iter=n_epochs,
            n_iter_no_change=10**9,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # so few epochs don't converge
            model.fit(x, y.ravel())

    return run


def torchbnn(case: Case) -> Run:
    """`bnn.BayesLinear` and `bnn.BKLLoss`, as its README."""
    import torchbnn as bnn

    def linear(n_in: int, n_out: int) -> nn.Module:
        return bnn.BayesLinear(prior_mu=0, prior_sigma=1.0, in_features=n_in, out_features=n_out)

    model = stacked(case, linear)
    kl_loss = bnn.BKLLoss(reduction="sum", last_layer_only=False)
    return elbo_loop(case, model, lambda: kl_loss(model).squeeze())


def bayesian_torch(case: Case, kind: str) -> Run:
    """`dnn_to_bnn` and `get_kl_loss`, as its README."""
    from bayesian_torch.models.dnn_to_bnn import dnn_to_bnn, get_kl_loss

    model = stacked(case, nn.Linear)
    options = {
        "prior_mu": 0.0,
        "prior_sigma": 1.0,
        "posterior_mu_init": 0.0,
        "posterior_rho_init": -4.0,
        "type": kind,
        "moped_enable": False,
    }
    dnn_to_bnn(model, options)
    return elbo_loop(case, model, lambda: get_kl_loss(model).squeeze())


def blitz(case: Case) -> Run:
    """`BayesianLinear` and `sample_elbo`, as its README; its mixture prior set to N(0, 1)."""
    from blitz.modules import BayesianLinear
    from blitz.utils import variational_estimator

    def linear(n_in: int, n_out: int) -> nn.Module:
        return BayesianLinear(n_in, n_out, prior_sigma_1=1.0, prior_sigma_2=1.0, prior_pi=1.0)

    model = variational_estimator(nn.Sequential)(*stacked(case, linear))

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return model.sample_elbo(
            inputs=x,
            labels=y,
            criterion=lambda outputs, targets: log_loss(case, outputs, targets),
            sample_nbr=1,
            complexity_cost_weight=1.0 / case.n_rows,
        )

    return adam_loop(case, model, loss)


def posteriors(case: Case) -> Run:
    """`vi.diag`, as the quick start of its documentation."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # about its own use of tensordict
        import posteriors
    import torchopt

    model = stacked(case, nn.Linear)

    def log_posterior(params: Any, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        outputs = torch.func.functional_call(model, params, batch[0])
        log_prior = posteriors.diag_normal_log_prob(params)
        return -log_loss(case, outputs, batch[1]) + log_prior / case.n_rows, outputs

    transform = posteriors.vi.diag.build(
        log_posterior,
        torchopt.adam(lr=LEARNING_RATE),
        temperature=1.0 / case.n_rows,
        init_log_sds=-4.0,
    )
    state = transform.init(dict(model.named_parameters()))
    x, y = random_data(case)

    def run(n_steps: int) -> None:
        nonlocal state
        for batch in batches(case, n_steps, x, y):
            state = transform.update(state, batch)[0]

    return run


def pyro(case: Case) -> Run:
    """`PyroModule` with `PyroSample` priors, `AutoNormal` and `SVI`, as its tutorials."""
    import pyro
    from pyro import distributions as dist
    from pyro.infer import SVI, Trace_ELBO
    from pyro.infer.autoguide import AutoNormal
    from pyro.nn import PyroModule, PyroSample

    with pyro.get_param_store().scope() as own:  # cases take turns, and names are the same
        pass

    def linear(n_in: int, n_out: int) -> nn.Module:
        layer = PyroModule[nn.Linear](n_in, n_out)
        for name, shape in (("weight", (n_out, n_in)), ("bias", (n_out,))):
            setattr(layer, name, PyroSample(dist.Normal(0.0, 1.0).expand(shape).to_event()))
        return layer

    forward = PyroModule[nn.Sequential](*stacked(case, linear))

    def model(x: Tensor, y: Tensor) -> None:
        outputs = forward(x)
        with pyro.plate("data", len(x)), pyro.poutine.scale(scale=case.n_rows / len(x)):
            if case.is_classification:
                pyro.sample("y", dist.Categorical(logits=outputs), obs=y)
            else:
                pyro.sample("y", dist.Normal(outputs, 1.0).to_event(1), obs=y)

    guide = AutoNormal(model, init_scale=0.02)
    svi = SVI(model, guide, pyro.optim.Adam({"lr": LEARNING_RATE}), loss=Trace_ELBO())
    x, y = random_data(case)

    def run(n_steps: int) -> None:
        with pyro.get_param_store().scope(own):
            for x_batch, y_batch in batches(case, n_steps, x, y):
                svi.step(x_batch, y_batch)

    return run


LOOPS: dict[str, Callable[[Case], Run]] = {
    OURS: lambda case: training(case, learning_rate=LEARNING_RATE),
    FUSED: lambda case: deterministic(case, fused=True),
    DEFAULT: lambda case: deterministic(case, fused=None),
    TEXTBOOK: textbook,
    "scikit-learn MLP": scikit_learn,
    "torchbnn": torchbnn,
    "bayesian-torch Reparam.": lambda case: bayesian_torch(case, "Reparameterization"),
    "bayesian-torch Flipout": lambda case: bayesian_torch(case, "Flipout"),
    "blitz sample_elbo": blitz,
    "posteriors vi.diag": posteriors,
    "pyro AutoNormal": pyro,
}
