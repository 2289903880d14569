"""Compare symmetrised inference with networks that have no symmetry by construction.

    SKBAYES_SYM_DATA=FOLDER python asv_bench/studies/symmetry_by_construction.py [--samples N]
    python asv_bench/studies/symmetry_by_construction.py --print

A subset of the weights can be fixed so that no permutation and no sign flip of hidden units keeps
the function (Sharma et al. 2023, Lim et al. 2024). Networks of eight tanh units are fitted to 100
rows of three data sets. Arms:

* ``mean-field`` and ``symmetrised``: variational inference without and with the symmetry;
* ``mean-field, weights sampled``: mean-field inference of the same network that samples weights
  instead of hidden units, as the following arms must;
* ``mean-field, fixed bias`` and ``mean-field, fixed weight``: each hidden unit has its bias, or one
  of its incoming weights, fixed at a positive value of its own, a quantile of the prior's absolute
  value;
* ``MCMC``, and ``MCMC, fixed weight`` for the first sample of each data set.

The prior of all other weights is N(0, 1). Each fit is scored by its bound (or the evidence of
chains, if it is defined) and the mean log density of up to 200 other rows, both in nats per row and
for targets in units of their standard deviation, and by CPU seconds. Results are stored in
``symmetry_by_construction.json`` after every fit.

* M. Sharma, S. Farquhar, E. Nalisnick, T. Rainforth (2023). Do Bayesian neural networks need to be
  fully stochastic? AISTATS.
* D. Lim, T. Putterman, R. Walters, H. Maron, S. Jegelka (2024). The empirical impact of neural
  parameter symmetries, or lack thereof. NeurIPS.
"""

import argparse
import json
import os
import warnings
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.stats import halfnorm
from timing import cpu_seconds, current_commit
from torch import Tensor

from skbayes_sym import MCMCRegressor, SymmetrizedVIRegressor
from skbayes_sym.models.likelihoods.likelihood import Likelihood
from skbayes_sym.models.networks.mlp import MLP, TANH
from skbayes_sym.models.networks.network import BaseNetwork, ChainLikelihood
from skbayes_sym.numerics.layout import ParamLayout

RESULTS = Path(__file__).with_suffix(".json")
DATA = ("yacht", "energy", "concrete")
N_TRAIN = 100
N_TEST = 200
N_UNITS = 8
ARMS = (
    "mean-field",
    "symmetrised",
    "mean-field, weights sampled",
    "mean-field, fixed bias",
    "mean-field, fixed weight",
    "MCMC",
    "MCMC, fixed weight",
)


@dataclass(frozen=True)
class FixedEntries(BaseNetwork):
    """A network with one hidden layer, some of whose incoming weights are constants.

    Parameters
    ----------
    mlp : MLP
        The network with all weights.
    fixed : {"bias", "weight"} or None
        Which entry of each unit is fixed. ``"weight"`` fixes that of one column, in turn.
    """

    mlp: MLP
    fixed: str | None

    @property
    def n_outputs(self) -> int:
        """Number of outputs."""
        return self.mlp.n_outputs

    @cached_property
    def layout(self) -> ParamLayout:
        """The free weights, in the order of the network with all weights."""
        return ParamLayout({"free": (len(self.free),)})

    @cached_property
    def free(self) -> Tensor:
        """Positions of the free weights in ``theta`` of the network with all weights."""
        is_free = torch.ones(self.mlp.layout.n_params, dtype=torch.bool)
        first_bias = N_UNITS * self.mlp.n_inputs
        units = torch.arange(N_UNITS)
        if self.fixed == "bias":
            is_free[first_bias + units] = False
        if self.fixed == "weight":
            is_free[self.mlp.n_inputs * units + units % self.mlp.n_inputs] = False
        return is_free.nonzero().squeeze(1)

    @cached_property
    def constants(self) -> Tensor:
        """All weights, of which those that aren't free are quantiles."""
        constants = torch.zeros(self.mlp.layout.n_params, dtype=torch.float64)
        is_free = torch.isin(torch.arange(len(constants)), self.free)
        if self.fixed is not None:
            quantiles = halfnorm.ppf((np.arange(N_UNITS) + 0.5) / N_UNITS)
            constants[~is_free] = torch.as_tensor(quantiles)
        return constants

    def insert(self, position: Tensor) -> Tensor:
        """Return all weights, followed by the parameters of the likelihood if there are any."""
        theta, params = position.split([len(self.free), position.shape[-1] - len(self.free)], -1)
        constants = self.constants.to(theta).expand(*theta.shape[:-1], -1)
        index = self.free.expand(theta.shape)
        return torch.cat([constants.scatter(-1, index, theta), params], -1)

    def init(self, n: int, *, generator: torch.Generator) -> Tensor:
        """Sample starting points as for the network with all weights."""
        return self.mlp.init(n, generator=generator)[:, self.free]

    def forward(self, theta: Tensor, x: Tensor) -> Tensor:
        """Return outputs (*B, N, 1)."""
        return self.mlp.forward(self.insert(theta), x)

    def chain_likelihood(
        self, likelihood: Likelihood, x: Tensor, y: Tensor, weight: Tensor
    ) -> "FixedEntriesLikelihood":
        """Return the log likelihood of many weight vectors for fixed data.

        Parameters
        ----------
        likelihood : Likelihood
        x, y, weight : Tensor
            Inputs, targets and weights of the rows.
        """
        return FixedEntriesLikelihood(self, self.mlp.chain_likelihood(likelihood, x, y, weight))


class FixedEntriesLikelihood(NamedTuple):
    """The `ChainLikelihood` of all weights, as a function of the free ones."""

    network: FixedEntries
    likelihood: ChainLikelihood

    def value(self, position: Tensor) -> Tensor:
        """Return log likelihoods (C,)."""
        return self.likelihood.value(self.network.insert(position))

    def gradient(self, position: Tensor, out: Tensor) -> Tensor:
        """Return the value (C,) and write the gradient to ``out`` (C, D)."""
        inserted = self.network.insert(position)
        slope = torch.empty_like(inserted)
        value = self.likelihood.gradient(inserted, slope)
        n_free = len(self.network.free)
        out[:, :n_free] = slope[:, self.network.free]
        out[:, n_free:] = slope[:, len(self.network.constants) :]
        return value


def make_model(arm: str, n_columns: int) -> Any:
    """Return the estimator of an arm, which isn't fitted."""
    method, _, network = arm.partition(", ")
    settings: dict[str, Any] = {"random_state": 0}
    if network:
        fixed = network.removeprefix("fixed ")
        mlp = MLP(n_columns, (N_UNITS,), 1, TANH)
        settings["network"] = FixedEntries(mlp, None if fixed == "weights sampled" else fixed)
    else:
        settings |= {"hidden_layer_sizes": (N_UNITS,), "activation": "tanh"}
    if method == "MCMC":
        return MCMCRegressor(**settings, prior=1.0)
    symmetry = "auto" if method == "symmetrised" else None
    return SymmetrizedVIRegressor(**settings, symmetry=symmetry)


def load_rows(name: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return rows in random order, with targets in units of their standard deviation."""
    path = Path(os.environ["SKBAYES_SYM_DATA"]) / "regression" / f"{name}.data"
    values = np.loadtxt(path)
    order = np.random.default_rng(seed).permutation(len(values))[: N_TRAIN + N_TEST]
    y = values[:, -1] / values[:, -1].std()
    return values[order, :-1], y[order]


def evaluate(arm: str, x: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """Fit an arm and return its bound, held-out log density (nats per row) and CPU seconds."""
    model = make_model(arm, x.shape[1])
    _, seconds = cpu_seconds(lambda: model.fit(x[:N_TRAIN], y[:N_TRAIN]))
    bound = model.log_evidence_ if arm.startswith("MCMC") else model.elbo_
    density = model.log_predictive_density(x[N_TRAIN:], y[N_TRAIN:])
    scores = {
        "bound": round(float(bound) / N_TRAIN, 4),
        "log_density": round(float(density.mean()), 4),
        "cpu_seconds": round(seconds, 2),
    }
    return {key: value for key, value in scores.items() if np.isfinite(value)}


def load_results() -> dict[str, Any]:
    """Return the stored results, or an empty table."""
    if RESULTS.exists():
        stored: dict[str, Any] = json.loads(RESULTS.read_text())
        return stored
    date = datetime.now(UTC).date().isoformat()
    return {"date": date, "commit": current_commit(), "fits": []}


def run(n_samples: int) -> None:
    """Make all fits that have no stored result."""
    results = load_results()
    done = {(fit["seed"], fit["data"], fit["arm"]) for fit in results["fits"]}
    for arm, k, name in product(ARMS, range(n_samples), DATA):
        if arm in ARMS[6:] and k > 0:  # such a fit takes a minute
            continue
        labels = {"seed": 3000 + k, "data": name, "arm": arm}
        if tuple(labels.values()) in done:
            continue
        x, y = load_rows(name, labels["seed"])
        results["fits"].append(labels | evaluate(arm, x, y))
        header = {key: value for key, value in results.items() if key != "fits"}
        lines = ",\n".join(json.dumps(fit) for fit in results["fits"])
        RESULTS.write_text(json.dumps(header)[:-1] + ', "fits": [\n' + lines + "\n]}\n")


def print_tables() -> None:
    """Print means by data set, and differences from mean-field inference with standard errors."""
    import pandas as pd

    fits = pd.DataFrame(load_results()["fits"])
    means = fits.pivot_table(index="arm", columns="data", values=["bound", "log_density"])
    print(means.round(3).reindex(ARMS).to_string())
    print(fits.groupby("arm")["cpu_seconds"].mean().reindex(ARMS).round(1).to_string())
    problem = ["seed", "data"]
    for score in ("bound", "log_density"):
        table = fits.pivot_table(index=problem, columns="arm", values=score)
        for base, others in (
            ("mean-field", ARMS[1:5]),
            ("symmetrised", ARMS[2:5]),
            ("mean-field, weights sampled", ARMS[3:5]),
            ("MCMC", ARMS[6:]),
        ):
            for arm in others:
                if arm not in table or base not in table:
                    continue
                difference = (table[arm] - table[base]).dropna()
                error = difference.std() / len(difference) ** 0.5
                print(
                    f"{score:12} {arm:27} less {base:27} {difference.mean():7.3f} +- {error:.3f}"
                    f"  higher in {int((difference > 0).sum())} of {len(difference)}"
                )


def main() -> None:
    """Evaluate, or print tables of the stored results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=4)
    parser.add_argument("--print", action="store_true", help="only print the stored results")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    if not args.print:
        run(args.samples)
    print_tables()


if __name__ == "__main__":
    main()
