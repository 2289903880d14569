"""Predictions: what is asked of the network linearised at the mode."""

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from skbayes_sym.inference.laplace.marginal_likelihood import LaplaceEvidence
from skbayes_sym.models.augmentations.augmentation import Augmentation, stratified_noise
from skbayes_sym.numerics.random import generator_from, spawn_seeds

EVALUATION_SAMPLES = 32  # transformations a row of the reported evidence and of predictions
_NEGLIGIBLE = 1e-3  # nats per row: what training takes for converged
_ROWS_LOOKED_AT = 200


class Transformations(NamedTuple):
    """A family of transformations of scaled inputs, as learned."""

    augmentation: Augmentation
    eta: Tensor
    n: int = EVALUATION_SAMPLES  # that predictions average over; 1: inputs as they are

    def noise(self, seed: int) -> Tensor:
        """Noise that the transformations are made of, (S, k) on the host: equal for all rows.

        Equal on every device, too: a prediction depends on its own row alone. ``seed``: of
        predictions.
        """
        seed, _ = spawn_seeds(seed, 2)  # the other one is of draws of the outputs
        k = self.augmentation.half_width.n_noise
        if self.n == 1 or not k:
            return torch.zeros(1, k)
        on_host, generator = torch.zeros(()), generator_from(seed)
        return stratified_noise(1, self.n, k, generator=generator, like=on_host)[0]


def averaging_is_negligible(
    evidence: LaplaceEvidence, theta: Tensor, hyper: Tensor, seed: int
) -> bool:
    """Whether inputs as they are predict what averages over transformations do.

    They do if no log density of some training rows, evenly spread over them, changes by more than
    `_NEGLIGIBLE` nats. ``seed``: of predictions.
    """
    model, data = evidence.model, evidence.data
    h = model.hyper.unflatten(hyper)
    likelihood = model.likelihood.to(hyper).at(h["likelihood"])
    transformations = Transformations(model.augmentation, h["eta"])

    def log_prob(x: Tensor, y: Tensor, n: int) -> Tensor:
        noise = transformations._replace(n=n).noise(seed).to(hyper)
        averaged = replace(model, n_samples=len(noise))
        outputs = averaged.forward(theta, h["eta"], x, noise.expand(len(x), *noise.shape))
        return likelihood.log_prob(outputs, y)

    n_rows = len(data.x)
    rows = torch.linspace(0, n_rows - 1, min(n_rows, _ROWS_LOOKED_AT)).long().to(data.x.device)
    blocks = ((data.x[some], data.y[some]) for some in rows.split(evidence.batch_size))
    changes = (log_prob(x, y, transformations.n) - log_prob(x, y, 1) for x, y in blocks)
    return all(float(change.abs().max()) <= _NEGLIGIBLE for change in changes)
