"""Training and prediction speed beside other packages: prints every claim with its target.

    python asv_bench/compare_peers.py [--all] [--repeats 9]

CPU time of one thread. All loops of a comparison run in one process, interleaved in random order;
a ratio is the median over rounds of the ratio within a round, because the speed of a shared machine
drifts. Peers are used as their documentation shows, with a N(0, 1) prior, the same batches and one
draw of the weights a step; one that isn't installed is shown as "-". Timed with float32, Adam and,
for regression, unit observation noise (ours learns it).

They do different things a step: only this package, the textbook loop and Flipout draw noise for
every row; the others share one draw of the weights, with up to 100 times the gradient variance.
"""

import argparse
import itertools
import random
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from benchmarks.common import CASES, Case, Run, gap_term, network, random_data, training
from threadpoolctl import threadpool_limits
from torch import Tensor, nn
from torch.nn import functional as F

from skbayes_sym import SymmetrizedVIClassifier
from skbayes_sym.symmetry.gaps.permanent_estimates import Exact, Importance

LEARNING_RATE = 1e-3
# Steps of a timed block; 80 batches are an epoch of the MNIST cases, 98 one of T100k.
STEPS = {"M30": 80, "T1k": 100, "M400": 80, "T100k": 98}
WARM_UP = 10
OURS, TEXTBOOK, DETERMINISTIC = "ours, mean-field", "textbook nn.Module, LRT", "deterministic torch"


# --- the loops: (case) -> run(n_steps) ------------------------------------------------------------


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


def adam_loop(case: Case, model: nn.Module, loss: Callable[[Tensor, Tensor], Tensor]) -> Run:
    """The usual loop of torch: zero_grad, loss(x, y), backward, step."""
    x, y = random_data(case)
    optimiser = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)

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


def deterministic(case: Case) -> Run:
    """An ordinary network."""
    model = stacked(case, nn.Linear)
    return adam_loop(case, model, lambda x, y: log_loss(case, model(x), y))


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

    pyro.clear_param_store()

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
        for x_batch, y_batch in batches(case, n_steps, x, y):
            svi.step(x_batch, y_batch)

    return run


LOOPS: dict[str, Callable[[Case], Run]] = {
    OURS: lambda case: training(case, learning_rate=LEARNING_RATE),
    DETERMINISTIC: deterministic,
    TEXTBOOK: textbook,
    "scikit-learn MLP": scikit_learn,
    "torchbnn": torchbnn,
    "bayesian-torch Reparam.": lambda case: bayesian_torch(case, "Reparameterization"),
    "bayesian-torch Flipout": lambda case: bayesian_torch(case, "Flipout"),
    "blitz sample_elbo": blitz,
    "posteriors vi.diag": posteriors,
    "pyro AutoNormal": pyro,
}
# Least ratio to our step that was promised; a peer's default is 1.
TARGETS = {
    DETERMINISTIC: {"M30": 1 / 1.0, "T1k": 1 / 1.3, "M400": 1 / 1.7, "T100k": 1 / 1.9},
    TEXTBOOK: {"M30": 3.0, "T1k": 2.4, "M400": 1.8, "T100k": 1.6},
    "scikit-learn MLP": {"M30": 1 / 1.3, "T1k": 1 / 1.3, "M400": 1 / 1.6, "T100k": 1 / 1.6},
}


# --- timing ---------------------------------------------------------------------------------------


def cpu_times(
    blocks: Mapping[str, Callable[[], None]], n_repeats: int, seed: int = 0
) -> dict[str, np.ndarray]:
    """CPU seconds of every block in every round, interleaved in random order."""
    order = random.Random(seed)
    seconds: dict[str, list[float]] = {name: [] for name in blocks}
    for _ in range(n_repeats):
        for name in order.sample(list(blocks), len(blocks)):
            start = time.process_time()
            blocks[name]()
            seconds[name].append(time.process_time() - start)
    return {name: np.array(s) for name, s in seconds.items()}


def step_times(loops: Mapping[str, Run], n_steps: int, n_repeats: int) -> dict[str, np.ndarray]:
    """CPU milliseconds a step, (n_repeats,) for every loop."""
    for run in loops.values():
        run(WARM_UP)
    blocks = {name: lambda run=run: run(n_steps) for name, run in loops.items()}
    return {n: 1e3 * s / n_steps for n, s in cpu_times(blocks, n_repeats).items()}


def median_ratio(times: Mapping[str, np.ndarray], name: str, base: str) -> float:
    """Median over rounds of the ratio within a round."""
    return float(np.median(times[name] / times[base]))


class Check(NamedTuple):
    """A measured ratio and what was promised for it."""

    ratio: float
    bound: float
    at_most: bool

    def __str__(self) -> str:
        met = self.ratio <= self.bound if self.at_most else self.ratio >= self.bound
        sign = "<=" if self.at_most else ">="
        return f"{self.ratio:6.2f} ({sign} {self.bound:4.2f}) {' ' if met else '!'}"


# --- the comparisons ------------------------------------------------------------------------------


def compare_steps(cases: Sequence[str], n_repeats: int) -> None:
    """The table: CPU time a step of every loop, relative to our mean-field step."""
    cells: dict[str, list[str]] = {name: [] for name in LOOPS}
    for case_name in cases:
        times = step_times(installed(CASES[case_name]), STEPS[case_name], n_repeats)
        for name in LOOPS:
            if name not in times:
                cells[name].append("-")
                continue
            bound = TARGETS.get(name, {}).get(case_name, 1.0)
            check = Check(median_ratio(times, name, OURS), bound, at_most=False)
            shown = f"{'1':>6}{'':12}" if name == OURS else str(check)
            cells[name].append(f"{np.median(times[name]):6.2f} {shown}")
    print("\nTraining: CPU ms a step, and the ratio to our step (target; ! = missed)")
    print(f"{'':26}" + "".join(f"{name:^27}" for name in cases))
    for name, row in cells.items():
        print(f"{name:26}" + "".join(f"{cell:27}" for cell in row))


def installed(case: Case) -> dict[str, Run]:
    """The loops whose package is there."""
    runs: dict[str, Run] = {}
    for name, make in LOOPS.items():
        try:
            runs[name] = make(case)
        except ImportError as error:
            print(f"{name}: {error}")
    return runs


def compare_gap(n_repeats: int) -> None:
    """What symmetrising costs, where the gap is saturated and where it isn't."""
    case = CASES["M30"]
    gated = gap_term(case, Importance())
    # Steps so short that the narrow posterior of the start, a saturated one, stays.
    narrow = {"learning_rate": 1e-7}
    loops = {OURS: training(case, **narrow), "gated": training(case, gap=gated, **narrow)}
    times = step_times(loops, 400, n_repeats)
    n_steps = WARM_UP + 400 * n_repeats
    print("\nThe symmetrisation gap, MNIST shapes (target; ! = missed)")
    print(f"gate closed in {gated.n_skipped} of {n_steps} steps")
    print(f"{'gated / mean-field step, d = 30':44}", end="")
    print(Check(median_ratio(times, "gated", OURS), 1.1, at_most=True))
    for width, estimate in ((10, Exact()), (30, Importance())):
        case = CASES["M30"]._replace(hidden=(width,))
        loops = {
            "ungated": training(case, gap=gap_term(case, estimate, gated=False), **narrow),
            TEXTBOOK: textbook(case),
            OURS: training(case, **narrow),
        }
        times = step_times(loops, 80, n_repeats)
        check = Check(median_ratio(times, "ungated", TEXTBOOK), 2.5, at_most=True)
        step, plain = (f"{np.median(times[k]):.2f} ms" for k in ("ungated", OURS))
        name = f"ungated {type(estimate).__name__}, d = {width} / textbook step"
        print(f"{name:44}{check} {step}, mean-field {plain}")


def peak_memory(case: Case, n_permutations: int) -> float:
    """Most bytes that one evaluation of the gap and its gradient holds at once."""
    from torch.profiler import ProfilerActivity, profile

    term = gap_term(case, Importance(n_permutations), gated=False)
    net = network(case)
    loc = net.init(1, generator=torch.Generator().manual_seed(0))[0].float()
    log_variance, gradient = torch.full_like(loc, -2.0), torch.zeros(2 * len(loc))
    with torch.no_grad():
        term.add_gradient(loc, log_variance, gradient, 0)  # the first step runs the gate's check
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
            term.add_gradient(loc, log_variance, gradient, 1)
    events = [e for e in profiled.profiler.kineto_results.events() if e.name() == "[memory]"]
    events.sort(key=lambda e: e.start_ns())
    return float(np.max(np.cumsum([e.nbytes() for e in events])))


def compare_memory() -> None:
    """Peak memory of the gap over the number K of assignments and that of parameters P."""
    counts = (16, 256)
    print("\nMemory of the importance gap, d = 30, S = 1: peak MB; one more assignment: O(d^2)")
    heads = [*(f"K = {k}" for k in counts), "kB an assignment", "8 d^2, kB", "8 P, kB"]
    print(f"{'P':>8}" + "".join(f"{head:>18}" for head in heads))
    for n_inputs in (98, 784, 3136):
        case = CASES["M30"]._replace(n_inputs=n_inputs)
        n_params = network(case).layout.n_params
        peaks = [peak_memory(case, k) for k in counts]
        slope = (peaks[1] - peaks[0]) / (counts[1] - counts[0])
        figures = [*(f"{p / 1e6:.2f}" for p in peaks)]
        figures += [f"{b / 1e3:.1f}" for b in (slope, 8 * 30**2, 8 * n_params)]
        print(f"{n_params:8d}" + "".join(f"{figure:>18}" for figure in figures))


def compare_prediction(n_repeats: int) -> None:
    """Class probabilities of 10,000 rows, averaged over 1,000 draws."""
    case = CASES["M30"]._replace(n_rows=10_000)
    X, y = (t.numpy() for t in random_data(case))
    model = SymmetrizedVIClassifier(
        case.hidden, max_iter=1, n_predict_samples=1_000, symmetry=None, random_state=0
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(X, y)
    x = torch.as_tensor((X - model.x_mean_) / model.x_scale_, dtype=torch.float32)

    @torch.no_grad()
    def naive() -> None:
        generator, total = torch.Generator().manual_seed(0), torch.zeros(())
        for theta in model.posterior_.sample(1_000, generator=generator).float():
            total = total + model.network_.forward(theta, x).softmax(-1)

    model.predict_proba(X[:1])
    times = cpu_times({"ours": lambda: model.predict_proba(X), "naive": naive}, n_repeats)
    check = Check(median_ratio(times, "naive", "ours"), 4.0, at_most=False)
    print("\nPrediction, 784-30-10, 1,000 draws x 10,000 rows (target; ! = missed)")
    print(f"{'naive loop over draws / predict_proba':44}{check}", end="")
    print(" " + ", ".join(f"{name} {np.median(s):.2f} s" for name, s in times.items()))


def main() -> None:
    """Run all comparisons."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--all", action="store_true", help="the large cases M400 and T100k too")
    parser.add_argument("--repeats", type=int, default=9)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with threadpool_limits(1):  # the BLAS of NumPy has its own threads
        compare_steps(list(CASES) if options.all else ["M30", "T1k"], options.repeats)
        compare_gap(options.repeats)
        compare_memory()
        compare_prediction(min(3, options.repeats))


if __name__ == "__main__":
    main()
