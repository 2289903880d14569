"""
Two weights, trained as the paper trains them (Gelberg et al. 2024, Tables 2 and 3)
==================================================================================

:ref:`sphx_glr_gallery_papers_plot_two_weight_network.py` compares the posteriors of
``relu(w_1 x) + relu(w_2 x)`` at their optima. The paper's Table 2 comes from training: 100 rows,
batches of 10, ten epochs of Adam at 0.005, test error of the average of 1000 draws, mean and
standard deviation over ten seeds. That is a hundred steps, in which no parameter moves by more than
about half. So the start matters, and it isn't printed, nor is the noise (4 here, as in the
example). Three starts:

- narrow: means from N(0, 0.1^2), standard deviations 0.1;
- layer: means uniform on (-1, 1), as a linear layer of torch with one input starts, standard
  deviations 0.1;
- prior: means from N(0, 1), standard deviations 1.

"SGM" is the symmetrised posterior, with both permutations. Same seed, same start, batches, draws.

Expect errors of 0.01 to 40, by the start. From the narrow one training gets near the optimum, and
the order is the optimum's: symmetrised, the error is larger at 0.05 and 0.1 and smaller at 0.15 and
0.2, where the paper has it smaller throughout. From the others a hundred steps don't get anywhere,
and the two methods differ by a thousandth of the spread over seeds.

Table 3 has the bounds of the same posteriors, by 1000 draws: of the mean-field density and of the
symmetrised one, here in nats per row (the paper's norm isn't printed; its noise neither).

Run ``python reproduce_gelberg_two_weights.py`` (20 seconds), or with ``--fast`` for 2 seeds.
"""

import argparse
from math import log

import torch
from torch import Tensor

ALPHAS = (0.05, 0.1, 0.15, 0.2)
STARTS = ("narrow", "layer", "prior")
N, BATCH, EPOCHS, RATE, NOISE = 100, 10, 10, 5e-3, 4.0


def network(w: Tensor, x: Tensor) -> Tensor:
    """Outputs (..., N) for weights (..., 2)."""
    return torch.relu(w.unsqueeze(-2) * x.unsqueeze(-1)).sum(-1)


def normal(x: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
    """Log density of independent normals, summed over the last axis."""
    return torch.distributions.Normal(loc, scale).log_prob(x).sum(-1)


def start(name: str, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Means and logarithms of standard deviations."""
    if name == "layer":
        return 2.0 * torch.rand(2, generator=generator) - 1.0, torch.full((2,), log(0.1))
    scale = 0.1 if name == "narrow" else 1.0
    return scale * torch.randn(2, generator=generator), torch.full((2,), log(scale))


def trained(alpha: float, begin: str, symmetrised: bool, seed: int) -> tuple[float, float, float]:
    """Train once: test error of the average prediction, and both bounds, nats per row.

    Bounds of the normal density itself, and of its average over both permutations.
    """
    generator = torch.Generator().manual_seed(seed)
    x, x_test = 20.0 * torch.rand(2, N, generator=generator) - 10.0
    loc, log_scale = (p.requires_grad_() for p in start(begin, generator))
    optimiser = torch.optim.Adam([loc, log_scale], lr=RATE)
    for _ in range(EPOCHS):
        for rows in torch.randperm(N, generator=generator).split(BATCH):
            scale = log_scale.exp()
            w = loc + scale * torch.randn(2, generator=generator)
            off = alpha * x[rows].abs() - network(w, x[rows])
            log_lik = -0.5 * (N / BATCH) * (off / NOISE).square().sum()
            log_q = normal(w, loc, scale)
            if symmetrised:
                log_q = torch.logaddexp(log_q, normal(w.flip(0), loc, scale)) - log(2.0)
            loss = log_q - log_lik + 0.5 * w.square().sum()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    with torch.no_grad():
        w = loc + log_scale.exp() * torch.randn(1000, 2, generator=generator)
        mean = network(w, x_test).mean(0)
        error = float((mean - alpha * x_test.abs()).square().mean())
        scale = log_scale.exp()
        off = (alpha * x.abs() - network(w, x)) / NOISE
        joint = normal(off, torch.zeros(()), torch.ones(())) - N * log(NOISE)
        joint += normal(w, torch.zeros(2), torch.ones(2))
        alone, swapped = normal(w, loc, scale), normal(w.flip(1), loc, scale)
        both = torch.logaddexp(alone, swapped) - log(2.0)
        return error, float((joint - alone).mean()) / N, float((joint - both).mean()) / N


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--fast", action="store_true", help="2 seeds: a smoke run")
    n_seeds = 2 if parser.parse_args().fast else 10
    print(f"test error, mean (deviation over {n_seeds} seeds); alpha =", *ALPHAS)
    print("paper   MFVI   .11 (.22)      .12 (.16)      .13 (.15)      .18 (.19)")
    print("        SGM    .09 (.19)      .09 (.17)      .10 (.15)      .12 (.16)")
    rows = {}
    for begin in STARTS:
        for name, symmetrised in (("MFVI", False), ("SGM", True)):
            rows[begin, name] = found = torch.tensor([
                [trained(alpha, begin, symmetrised, seed) for seed in range(n_seeds)]
                for alpha in ALPHAS
            ])  # fmt: skip
            cells = (f"{one[:, 0].mean():.3f} ({one[:, 0].std():.3f})  " for one in found)
            print(f"{begin:7} {name:5}", *cells, flush=True)
    print("\nbounds, nats per row: mean field, symmetrised")
    print("paper   MFVI  -.022 -.009   -.025 -.013   -.032 -.021   -.042 -.031  (unstated norm)")
    print("        SGM   -.023 -.004   -.029 -.007   -.035 -.012   -.043 -.019")
    for (begin, name), found in rows.items():
        cells = (f"{one[:, 1].mean():.4f} {one[:, 2].mean():.4f} " for one in found)
        print(f"{begin:7} {name:5}", *cells)


if __name__ == "__main__":
    main()
