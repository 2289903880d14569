"""Symmetry removal: seconds on one core, and how much of a planted labelling comes back."""

import warnings
from typing import Any

import torch
from sklearn.exceptions import ConvergenceWarning

from skbayes_sym.inspection.symmetry_removal import remove_symmetries
from skbayes_sym.models.networks.mlp import MLP, TANH

from .common import SingleThread

# Widths and inputs; "prior" draws have nothing to align to, the slowest case.
NETS = {"3": ((3,), 1), "16": ((16,), 1), "3x16": ((16, 16, 16), 5)}
NOISES = {"noise 0.3": 0.3, "noise 0.5": 0.5, "prior": 30.0}


class _Planted(SingleThread):
    """Draws around one network, moved by a random group element each."""

    n_draws = 1274  # the paper's number of chains

    def setup(self, net: str, noise: str, *args: Any) -> None:
        super().setup()
        sizes, n_inputs = NETS[net]
        network, scale = MLP(n_inputs, sizes, 1, TANH), NOISES[noise]
        generator = torch.Generator().manual_seed(0)
        base = torch.randn(network.layout.n_params, generator=generator, dtype=torch.float64)
        spread = torch.randn(self.n_draws, len(base), generator=generator, dtype=torch.float64)
        theta, group = base + scale * spread, network.symmetry()
        self.theta = theta.numpy()
        self.draws = group.act(group.sample((self.n_draws,), generator=generator), theta).numpy()
        self.settings: dict[str, Any] = {
            "hidden_layer_sizes": sizes,
            "activation": "tanh",
            "n_features_in": n_inputs,
            "random_state": 0,
        }

    def remove(self, **settings: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            return remove_symmetries(self.draws, **self.settings, **settings)


class Assignment(_Planted):
    """Relabelling, four starts: targets 0.1 s for 3 units, 3 s for 16."""

    params = (list(NETS), list(NOISES))
    param_names = ("net", "draws")
    timeout = 300

    def time_remove(self, net: str, noise: str) -> None:
        self.remove()

    def peakmem_remove(self, net: str, noise: str) -> None:
        self.remove()


class Scatter(_Planted):
    """Variance over draws left by 200 draws, over the planted one: 1 is recovery."""

    params = (["3x16"], ["noise 0.3", "noise 0.5"], [1, 4])
    param_names = ("net", "draws", "starts")
    n_draws = 200

    def track_scatter(self, net: str, noise: str, n_starts: int) -> float:
        found = self.remove(n_starts=n_starts).draws
        return float(found[:, :-1].var(axis=0).mean() / self.theta[:, :-1].var(axis=0).mean())
