r"""
Components that inference switches off
======================================

Figures 3 and 4 of Moore (2016), *Symmetrized variational inference*: mean-field inference and MAP
shrink a matrix factorisation to fewer components than the posterior has, and a posterior that knows
its rotations doesn't. Formulas corrected as the :ref:`user guide <matrix_factorization>` explains.
Takes about two minutes.
"""

# %%
# One number
# ----------
# The smallest factorisation is :math:`r = u v + \epsilon`, all three standard normal. Its posterior
# mean of :math:`uv` is known by quadrature: with v given, r is :math:`N(0, 1 + v^2)`.
#
# MAP puts out every observation below 1, mean-field inference every one below the golden ratio
# 1.618. Averaged over the sign flip :math:`(u, v) \to (-u, -v)`, the only symmetry here, the
# posterior follows the exact answer and puts out none.

import numpy as np
import torch

from skbayes_sym import SymVIMatrixFactorization
from skbayes_sym.factorization.solvers import VI, Gibbs

# The paper's model: no offsets, nothing learned of the prior.
PAPER = {"standardize": False, "offsets": False, "prior": 1.0, "random_state": 0}
SCALAR = {**PAPER, "noise_std": 1.0, "tol": 1e-10}
SOLVERS = {
    "MAP": {"solver": "map"},
    "MFVI": {"solver": VI(symmetry=None), "max_iter": 3000, "tol": 1e-8},
    "SymVI": {"max_iter": 2000},
}


def exact_mean(r: float) -> float:
    """E[uv | r] by the trapezoidal rule over v."""
    v = np.linspace(-12.0, 12.0, 4001)
    weight = np.exp(-0.5 * v**2 - 0.5 * r**2 / (1.0 + v**2)) / np.sqrt(1.0 + v**2)
    return float(weight @ (r * v**2 / (1.0 + v**2)) / weight.sum())


def scalar_mean(r: float, **settings: object) -> float:
    """What a solver makes of a matrix with one entry."""
    model = SymVIMatrixFactorization(1, **SCALAR).set_params(**settings)
    return abs(float(model.fit(np.array([[r]])).reconstruct()[0, 0]))


observed = np.array([0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0])
scalar = {"exact": [exact_mean(r) for r in observed]}
for name, settings in SOLVERS.items():
    scalar[name] = [scalar_mean(r, **{"max_iter": 20_000} | settings) for r in observed]

print("posterior mean of u v, r = u v + noise")
print("r      " + "".join(f"{name:>10}" for name in scalar))
for row, r in enumerate(observed):
    print(f"{r:<7g}" + "".join(f"{values[row]:10.4f}" for values in scalar.values()))

# %%
# Eighty matrices
# ---------------
# Matrices of 40 x 40 entries, :math:`R = U V^\top / \sqrt{20} + 2 \epsilon` with standard normal
# U, V and noise: the signal has 20 components, most of them below the noise. The solvers know the
# noise and the prior. The error is that of the posterior mean against
# :math:`U V^\top / \sqrt{20}`, and Gibbs sampling, the posterior itself, shows what there is to
# reach.

N_MATRICES, SIZE, RANK, NOISE = 80, 40, 20, 2.0
MATRIX = {**PAPER, "noise_std": NOISE}
METHODS = {
    "MAP": {"solver": "map", "max_iter": 3000, "tol": 1e-8},
    "MFVI": {"solver": VI(symmetry=None), "max_iter": 3000, "tol": 1e-8},
    "SymVI isotropic": {"solver": VI("isotropic")},
    "SymVI full": {"solver": VI("full")},
    "Gibbs": {"solver": Gibbs(400), "max_iter": 1000},
}


def draw_matrices(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Signals and noisy matrices, (n, 40, 40)."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    u, v, noise = normal(n, SIZE, RANK), normal(n, SIZE, RANK), normal(n, SIZE, SIZE)
    signal = u @ v.mT / RANK**0.5
    return signal.numpy(), (signal + NOISE * noise).numpy()


def errors_and_values(n: int) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """RMSE (n,) and singular values of the posterior mean (n, 20) of every method."""
    rmse = {name: np.empty(n) for name in METHODS}
    values = {name: np.empty((n, RANK)) for name in METHODS}
    for i, (signal, matrix) in enumerate(zip(*draw_matrices(n), strict=True)):
        for name, settings in METHODS.items():
            model = SymVIMatrixFactorization(RANK, **MATRIX).set_params(**settings)
            mean = model.fit(matrix).reconstruct()
            rmse[name][i] = np.sqrt(np.mean((mean - signal) ** 2))
            values[name][i] = np.linalg.svd(mean, compute_uv=False)[:RANK]
    return rmse, values


rmse, values = errors_and_values(N_MATRICES)

print(f"\n{N_MATRICES} matrices       RMSE             against MAP       against Gibbs  components")
for name, error in rmse.items():
    against = [error - rmse["MAP"], error - rmse["Gibbs"]]
    cells = [f"{a.mean():+.4f} ({a.std() / N_MATRICES**0.5:.4f})" for a in against]
    used = np.mean((values[name] > 1e-3).sum(axis=1))
    spread = error.std() / N_MATRICES**0.5
    print(f"{name:<17}{error.mean():.4f} ({spread:.4f})  {cells[0]}  {cells[1]}  {used:8.1f}")

# %%
# Top left the scalar model; top right the singular values of the posterior mean, averaged over the
# matrices; below the errors. Mean-field inference keeps 3 of the 20 components, MAP 10. SymVI keeps
# them all, at about the size that the posterior gives them. (Gibbs sampling averages products of
# draws, so its mean can have more than 20.)

import matplotlib.pyplot as plt

COLOURS = {
    "exact": "black", "Gibbs": "black", "MAP": "#E69F00", "MFVI": "#0072B2",
    "SymVI": "#D55E00", "SymVI full": "#D55E00", "SymVI isotropic": "#CC79A7",
}  # fmt: skip
STYLES = {"exact": "--", "Gibbs": "--", "MAP": "-.", "MFVI": ":", "SymVI isotropic": (0, (4, 1))}

figure, panels = plt.subplot_mosaic(
    [["left", "right"], ["below", "below"]], figsize=(7.4, 6.0), height_ratios=[1.3, 1],
    layout="constrained",
)  # fmt: skip
left, right, below = (panels[place] for place in ("left", "right", "below"))
for name, line in scalar.items():
    left.plot(observed, line, color=COLOURS[name], ls=STYLES.get(name, "-"), lw=2, label=name)
left.set(xlabel="observed r", ylabel="posterior mean of u v", title="one number")
left.legend(frameon=False, fontsize=9)
for name, found in values.items():
    right.plot(
        np.arange(1, RANK + 1), found.mean(axis=0), color=COLOURS[name],
        ls=STYLES.get(name, "-"), lw=2, label=name,
    )  # fmt: skip
right.set(xlabel="component", ylabel="singular value", title="posterior mean")
right.set_xticks([1, 5, 10, 15, 20])
right.legend(frameon=False, fontsize=9)
boxes = below.boxplot(
    list(rmse.values()), orientation="horizontal", widths=0.6, patch_artist=True,
    medianprops={"color": "black"}, flierprops={"marker": ".", "markersize": 4},
)  # fmt: skip
for box, name in zip(boxes["boxes"], rmse, strict=True):
    box.set(facecolor=COLOURS[name], alpha=0.2 if name == "Gibbs" else 0.6)
below.set_yticks(range(1, len(rmse) + 1), list(rmse))
below.invert_yaxis()
below.set(xlabel="RMSE to the signal", title=f"{N_MATRICES} matrices")
for axes in panels.values():
    axes.spines[["top", "right"]].set_visible(False)
plt.show()
