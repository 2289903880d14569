"""Change one constant behind "auto" at a time, and measure what it does to densities and time.

    SKBAYES_SYM_DATA=FOLDER python asv_bench/studies/ablation.py [--only NAME ...] [--rows N]
        [--constants NAME ...] [--tables NAME ...]

The constants of the default stacks of regression and classification are varied within the stack,
where other members can compensate. Only members that a constant affects are fitted again. The
constants of `BayesianMLPRegressor` are varied in fits of this model alone, since stacks often have
no networks, and some of them in fits of `LaplaceRegressor`, where nothing else compensates. Tables
are the half that chose constants, and two smooth functions for the networks; ``--tables`` names
others. A constant is kept if its plain alternatives lose 0.005 nats per row on average or 0.03 on a
table, or take a fifth more time.
"""

import argparse
import os
import time
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.datasets import load_digits
from threadpoolctl import threadpool_limits

import skbayes_sym as sk
from skbayes_sym.base.plan import TableSize
from skbayes_sym.bayesian_mlp.defaults import PoolDefaults
from skbayes_sym.laplace.defaults import GaussNewtonDefaults
from skbayes_sym.stacking.defaults import StackDefaults
from skbayes_sym.stacking.fit import fit_weights, marginal_gain
from skbayes_sym.stacking.folds import make_folds
from skbayes_sym.stacking.members import MEMBERS, Networks
from skbayes_sym.stacking.members.gaussian_process import (
    GaussianProcessDefaults,
    GaussianProcessMember,
    fit_gaussian_process,
)
from skbayes_sym.stacking.members.networks import (
    NetworkProbe,
    ProbeResult,
    choose_probe_width,
    correct_optimism,
)
from skbayes_sym.stacking.scoring import score_member
from skbayes_sym.stacking.task import MemberFit, RowBlock, ScoredMember, StackTask

TABLES = (
    "regression/cholesterol", "regression/fishcatch", "regression/servo", "regression/strike",
    "people/biomass", "people/plasma_retinol", "wave", "ridge",
)  # fmt: skip
CLASS_TABLES = (
    "classification/adult", "classification/haberman", "classification/hypothyroid",
    "classification/mammography", "classification/oil-spill", "classification/vote",
    "wave_classes",
)  # fmt: skip
NETWORK_TABLES = (
    "regression/fishcatch", "regression/servo", "people/biomass", "wave", "ridge",
    "yacht", "energy", "concrete", "airfoil",
)  # fmt: skip
CHEAP = ("linear", "trees", "boosting", "gaussian_process")

# Alternatives of each constant of the stack, and the members that have to be fitted again.
STACK = {
    "n_folds": ((3, 10), ("boosting", "probe")),
    "prior_score_scale": ((0.5, 2.0, 1e-9, 1e9), ()),
    "min_weight": ((0.0, 0.01), ()),
    "min_gain_errors": ((-np.inf, 0.0, 1.0, 4.0, np.inf), ()),
    "probe_widths": (((8,), (20,)), ("probe",)),
    "probe_steps": ((25, 100), ("probe",)),
    "probe_fold_steps": ((2, 10), ("probe",)),
    "n_trees": ((50, 200), ("trees",)),
    "leaf_variance_fraction": ((0.0, 0.01, 0.03, 0.2), ("trees",)),
    "max_rounds": ((75, 300), ("boosting",)),
    "learning_rate": ((0.05, 0.2), ("boosting",)),
    "max_leaf_nodes": ((7, 31), ("boosting",)),
    "min_leaf_rows": ((5, 20), ("boosting",)),
}
# The same for the stack of classification. The last one is a constant of its Gaussian processes.
CLASS_STACK = {
    "n_folds": ((3, 10), ("boosting", "probe")),
    "prior_score_scale": ((0.5, 2.0, 1e-9, 1e9), ()),
    "min_weight": ((0.0, 0.01), ()),
    "min_gain_errors": ((-np.inf, 0.0, 1.0, 4.0, np.inf), ()),
    "probe_widths": (((8,), (20,)), ("probe",)),
    "min_probe_rows_per_weight": ((0, 16), ("probe",)),
    "n_trees": ((50, 200), ("trees",)),
    "max_rounds": ((37, 150), ("boosting",)),
    "max_classification_trees": ((200, 800), ("boosting",)),
    "min_classification_rounds": ((0, 75), ("boosting",)),
    "classification_learning_rate": ((0.05, 0.2), ("boosting",)),
    "max_leaf_nodes": ((7, 31), ("boosting",)),
    "min_leaf_rows": ((5, 20), ("boosting",)),
    "max_total_bins": ((2048, 32768), ("boosting",)),
    "classification_log_scale_std": ((0.01, 0.5, 1.5), ("gaussian_process",)),
}
# The same for the networks; the first word names the class.
NETWORKS = {
    "modes.small_sample_rows": (0,),
    "modes.negligible_noise_fraction": (0.0, 0.02),
    "modes.extra_steps_factor": (0, 4),
    "modes.max_unexplained_fraction": (0.0, 0.3),
    "modes.validation_steps": (12, 48),
    "modes.validation_extra_steps": (0,),
    "modes.validation_tol": (1e-4,),
    "pool.mode_tol": (5e-5,),
    "pool.min_trial_gain": (0.0, np.inf),
    "pool.min_gain": (0.0, 1.0),
    "estimator.n_modes": (5,),
    "estimator.n_members": (0,),
}
# The same for a single approximation by Laplace.
LAPLACE = {
    "negligible_noise_fraction": (0.0,),
    "validation_extra_steps": (0,),
}


@dataclass(frozen=True)
class Table:
    """Standardised training and test rows, with scaled targets or class codes."""

    name: str
    x: torch.Tensor
    y: torch.Tensor
    x_test: torch.Tensor
    y_test: torch.Tensor
    n_classes: int = 0


def load(name: str, n_rows: int) -> Table:
    """Read a table, or simulate a function, and standardise it.

    Test rows of classes that the training rows lack are left out.
    """
    rng = np.random.default_rng(0)
    has_classes = "class" in name or name == "digits"
    if name in ("wave", "ridge", "wave_classes"):
        x = rng.standard_normal((1500, 6))
        direction = np.array([0.8, -0.6, 0.5, 0.3, 0.0, 0.0])
        signal = np.tanh(2.0 * x @ direction)
        if name != "ridge":
            signal = np.sin(2.0 * x[:, 0]) + x[:, 1] * x[:, 2]
        y = signal + 0.1 * rng.standard_normal(len(x))
        if has_classes:
            y = np.digitize(y, np.quantile(y, (1.0 / 3.0, 2.0 / 3.0)))
    elif name == "digits":
        x, y = load_digits(return_X_y=True)
    elif "/" not in name:
        numbers = np.loadtxt(Path(os.environ["SKBAYES_SYM_DATA"]) / f"regression/{name}.data")
        x = numbers[:, :-1]
        y = numbers[:, -1]
    else:
        path = Path(os.environ["SKBAYES_SYM_DATA"]) / f"tables/{name}.csv.gz"
        table = pd.read_csv(path)
        inputs = pd.get_dummies(table.iloc[:, :-1], dtype=float)
        x = inputs.fillna(inputs.median()).fillna(0.0).to_numpy(float)
        y = table.iloc[:, -1].to_numpy()
    order = rng.permutation(len(y))
    train = order[: min(n_rows, int(0.7 * len(y)))]
    test = order[len(train) :][:1000]
    x = (x - x[train].mean(axis=0)) / np.where(x[train].std(axis=0) > 0.0, x[train].std(axis=0), 1)
    if has_classes:
        classes = np.unique(y[train])
        test = test[np.isin(y[test], classes)]
        codes = (np.searchsorted(classes, y[index]) for index in (train, test))
        y_train, y_test = map(torch.as_tensor, codes)
        return Table(
            name, torch.as_tensor(x[train]), y_train, torch.as_tensor(x[test]), y_test, len(classes)
        )
    y = (y - y[train].mean()) / y[train].std()
    parts = (x[train], y[train, None], x[test], y[test, None])
    return Table(name, *map(torch.as_tensor, parts))


def make_task(table: Table, defaults: StackDefaults) -> StackTask:
    """Training data of a stack, with folds."""
    weight = torch.ones(len(table.x), dtype=torch.float64)
    targets = table.y.flatten().numpy()
    is_classification = table.n_classes > 0
    folds = make_folds(defaults.n_folds, targets, 0, None, is_classification=is_classification)
    classes = np.arange(table.n_classes) if is_classification else None
    return StackTask(
        RowBlock(table.x, table.x.numpy()), table.y, weight, targets, folds, seed=0,
        classes=classes, defaults=defaults,
    )  # fmt: skip


@dataclass(frozen=True)
class AblatedGaussianProcess(GaussianProcessMember):
    """Gaussian process of classes with another prior of the length scales."""

    log_scale_std: float = GaussianProcessDefaults.classification_log_scale_std

    def fit(self, task: StackTask) -> MemberFit:
        """Regress on one-hot labels."""
        one_hot = torch.nn.functional.one_hot(task.y, task.n_classes).to(task.rows.x)
        data = task.data._replace(y=one_hot)
        process, distribution = fit_gaussian_process(data, task.seed, self.log_scale_std)
        return MemberFit(process, distribution.loc[0])


class StackFits:
    """Fits of a table's members, each with its time and test densities, kept for other stacks."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._size = TableSize(
            *table.x.shape, n_classes=table.n_classes, total_weight=float(len(table.x))
        )
        self._kept: dict[tuple[str, str], tuple[ScoredMember, Any, float]] = {}

    def _fit(
        self,
        name: str,
        defaults: StackDefaults,
        affected: Iterable[str],
        log_scale_std: float | None = None,
    ) -> tuple[ScoredMember, Any, float]:
        """Member, its test log densities and its CPU seconds; refitted if it is affected."""
        key = (name, repr((defaults, log_scale_std)) if name in affected else "")
        if key not in self._kept:
            task = make_task(self._table, defaults)
            if name == "probe":
                member: Any = NetworkProbe(choose_probe_width(self._size, defaults))
            elif name == "networks":
                member = Networks()
            else:
                member = MEMBERS[name]()
                if log_scale_std is not None and name == "gaussian_process":
                    member = AblatedGaussianProcess(log_scale_std=log_scale_std)
                settings = member.choose_settings(self._size, defaults)
                member = replace(member, **settings) if settings else member
            start = time.process_time()
            scored = score_member(member, task, by_folds=False)
            seconds = time.process_time() - start
            density = None
            if name != "probe":
                x_test = self._table.x_test
                distribution = scored.predictor.distribution(RowBlock(x_test, x_test.numpy()))
                density = distribution.log_prob(self._table.y_test).numpy()
            self._kept[key] = scored, density, seconds
        return self._kept[key]

    def score(
        self,
        defaults: StackDefaults,
        affected: Iterable[str] = (),
        log_scale_std: float | None = None,
    ) -> tuple[float, float]:
        """Test log density of the stack, in nats per row, and CPU seconds of its members.

        Parameters
        ----------
        defaults : StackDefaults
            Constants of the stack.
        affected : iterable of str
            Members that are fitted again.
        log_scale_std : float, optional
            Prior of the length scales of Gaussian processes of classes, if it isn't the usual one.
        """
        fits = {name: self._fit(name, defaults, affected, log_scale_std) for name in CHEAP}
        task = make_task(self._table, defaults)
        seconds = sum(fit[2] for fit in fits.values())
        members = {name: fit[0] for name, fit in fits.items()}
        if defaults.min_gain_errors < np.inf and choose_probe_width(self._size, defaults):
            probe, _, probe_seconds = self._fit("probe", defaults, affected)
            seconds += probe_seconds
            gain, error = marginal_gain(members, probe.log_density, task)
            if gain > defaults.min_gain_errors * error:
                fits["networks"] = self._fit("networks", defaults, affected)
                networks = fits["networks"][0]
                if task.n_classes:
                    density = correct_optimism(
                        networks.log_density, probe.log_density, task.weight.numpy()
                    )
                else:
                    result = ProbeResult(probe.log_density, approximate=probe.approximate)
                    density = networks.log_density - max(0.0, result.excess(task))
                members["networks"] = networks._replace(log_density=density)
                seconds += fits["networks"][2]
        weights = fit_weights(members, task).weights
        with np.errstate(divide="ignore"):
            terms = [np.log(weights[name]) + fits[name][1] for name in members]
        return float(np.logaddexp.reduce(terms).mean()), seconds


class AblatedMLP(sk.BayesianMLPRegressor):
    """Mixture of networks with other constants."""

    pool_defaults = PoolDefaults()

    def _make_method(self) -> Any:
        method = super()._make_method()
        return replace(method, pool=replace(method.pool, defaults=self.pool_defaults))


class AblatedLaplace(sk.LaplaceRegressor):
    """Laplace approximation with other constants."""

    _defaults = GaussNewtonDefaults()


def score_networks(table: Table, constant: str = "", value: Any = None) -> tuple[float, float]:
    """Test log density of `BayesianMLPRegressor` alone, and CPU seconds of its fit."""
    model: Any = AblatedMLP(compute_evidence=False, random_state=0)
    kind, _, name = constant.partition(".")
    if kind == "estimator":
        model.set_params(**{name: value})
    elif kind == "pool":
        model.pool_defaults = replace(PoolDefaults(), **{name: value})
    elif kind == "modes":
        modes = replace(GaussNewtonDefaults(), **{name: value})
        model.pool_defaults = PoolDefaults(modes=modes)
    return score_model(model, table)


def score_laplace(table: Table, constant: str = "", value: Any = None) -> tuple[float, float]:
    """Test log density of `LaplaceRegressor` alone, and CPU seconds of its fit."""
    model: Any = AblatedLaplace(random_state=0)
    if constant:
        model._defaults = replace(GaussNewtonDefaults(), **{constant: value})
    return score_model(model, table)


def score_model(model: Any, table: Table) -> tuple[float, float]:
    """Fit a model; its test log density in nats per row, and CPU seconds of the fit."""
    start = time.process_time()
    model.fit(table.x.numpy(), table.y[:, 0].numpy())
    seconds = time.process_time() - start
    density = model.log_predictive_density(table.x_test.numpy(), table.y_test[:, 0].numpy())
    return float(density.mean()), seconds


def report(
    constant: str, value: Any, usual: Any, base: Mapping[str, Any], other: Mapping[str, Any]
) -> None:
    """Print the change of densities and time from the usual value of a constant to another."""
    change = np.array([other[name][0] - base[name][0] for name in base])
    names = list(base)
    seconds = sum(fit[1] for fit in other.values()) / sum(fit[1] for fit in base.values())
    print(
        f"{constant:32s}{usual!s:>12}{value!s:>12}{change.mean():9.3f}"
        f"{change.max():9.3f} {names[change.argmax()].split('/')[-1]:16s}"
        f"{change.min():9.3f} {names[change.argmin()].split('/')[-1]:16s}"
        f"{100 * seconds - 100:+6.0f} %",
        flush=True,
    )


def print_base(base: Mapping[str, tuple[float, float]]) -> None:
    """Print the densities and CPU seconds of fits with the usual constants."""
    for name, (density, seconds) in base.items():
        print(f"{name:32s}{density:9.3f} nats per row{seconds:9.2f} s", flush=True)


def ablate_stack(n_rows: int, constants: Collection[str], tables: Collection[str]) -> None:
    """Print the table of the stack, of some constants or of all."""
    fits = {name: StackFits(load(name, n_rows)) for name in tables or TABLES}
    usual = StackDefaults()
    base = {name: fit.score(usual) for name, fit in fits.items()}
    for constant, (values, affected) in STACK.items():
        if constants and constant not in constants:
            continue
        for value in values:
            defaults = replace(usual, **{constant: value})
            other = {name: fit.score(defaults, affected) for name, fit in fits.items()}
            report(constant, value, getattr(usual, constant), base, other)


def ablate_class_stack(n_rows: int, constants: Collection[str], tables: Collection[str]) -> None:
    """Print the table of the stack of classification, of some constants or of all."""
    fits = {name: StackFits(load(name, n_rows)) for name in tables or CLASS_TABLES}
    usual = StackDefaults()
    base = {name: fit.score(usual) for name, fit in fits.items()}
    print_base(base)
    for constant, (values, affected) in CLASS_STACK.items():
        if constants and constant not in constants:
            continue
        for value in values:
            if constant == "classification_log_scale_std":
                usual_value: Any = GaussianProcessDefaults.classification_log_scale_std
                other = {name: fit.score(usual, affected, value) for name, fit in fits.items()}
            else:
                usual_value = getattr(usual, constant)
                defaults = replace(usual, **{constant: value})
                other = {name: fit.score(defaults, affected) for name, fit in fits.items()}
            report(constant, value, usual_value, base, other)


def ablate_networks(n_rows: int, constants: Collection[str], tables: Collection[str]) -> None:
    """Print the table of the networks, of some constants or of all."""
    loaded = {name: load(name, n_rows) for name in tables or NETWORK_TABLES}
    base = {name: score_networks(table) for name, table in loaded.items()}
    usual = {"modes": GaussNewtonDefaults(), "pool": PoolDefaults(), "estimator": AblatedMLP()}
    for constant, values in NETWORKS.items():
        kind, name = constant.split(".")
        if constants and name not in constants:
            continue
        for value in values:
            other = {key: score_networks(table, constant, value) for key, table in loaded.items()}
            report(constant, value, getattr(usual[kind], name), base, other)


def ablate_laplace(n_rows: int, constants: Collection[str], tables: Collection[str]) -> None:
    """Print the table of a single approximation by Laplace, of some constants or of all."""
    loaded = {name: load(name, n_rows) for name in tables or NETWORK_TABLES}
    base = {name: score_laplace(table) for name, table in loaded.items()}
    for constant, values in LAPLACE.items():
        if constants and constant not in constants:
            continue
        for value in values:
            other = {key: score_laplace(table, constant, value) for key, table in loaded.items()}
            report(constant, value, getattr(GaussNewtonDefaults(), constant), base, other)


ABLATIONS: dict[str, Callable[[int, Collection[str], Collection[str]], None]] = {
    "stack": ablate_stack,
    "classes": ablate_class_stack,
    "networks": ablate_networks,
    "laplace": ablate_laplace,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", default=list(ABLATIONS), choices=ABLATIONS)
    parser.add_argument("--rows", type=int, default=200)
    parser.add_argument("--constants", nargs="+", default=[])
    parser.add_argument("--tables", nargs="+", default=[], help="instead of the usual ones")
    args = parser.parse_args()
    print(f"{'constant':32s}{'usual':>12}{'changed to':>12}{'mean':>9}{'best table':>26}"
          f"{'worst table':>26}{'time':>7}")  # fmt: skip
    for name in args.only:
        ABLATIONS[name](args.rows, args.constants, args.tables)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    with threadpool_limits(1):
        torch.set_num_threads(1)
        main()
