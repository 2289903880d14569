"""What a sampled fit keeps: draws on the reference set, modes, evidence, diagnostics."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from skbayes_sym.estimators._fit.rows import Array
from skbayes_sym.estimators._fit.training import log_jacobian
from skbayes_sym.estimators.mcmc.diagnostics import Mode, diagnose, disagreement, list_modes
from skbayes_sym.estimators.mcmc.explore import Draws, Explored
from skbayes_sym.estimators.mcmc.setting import Setting
from skbayes_sym.estimators.mcmc.warm_start import as_arrays
from skbayes_sym.inference.mcmc.blocks import Block
from skbayes_sym.inference.multimodal.weights import Weighing
from skbayes_sym.numerics.random import generator_from
from skbayes_sym.symmetry.relabelling import relabel


def prediction_attributes(setting: Setting, draws: Draws, blocks: list[Block]) -> dict[str, Any]:
    """Everything that predicting needs, as NumPy arrays, and what a warm start needs."""
    context, model = setting.context, setting.model
    theta, noise_std = setting.posterior.split(torch.as_tensor(draws.position))
    attributes = {
        "samples_": _on_reference_set(setting, theta),
        "chain_weights_": draws.chain_weights,
        "log_posterior_samples_": draws.value.astype(np.float64)
        + log_jacobian(setting.context.rows.weight, setting.model.y_scaling),
        "network_": model.network,
        "x_mean_": context.x_scaling.mean,
        "x_scale_": context.x_scaling.scale,
        "device_": str(context.device),
        "dtype_": str(context.dtype).removeprefix("torch."),
        "_blocks_": [as_arrays(block) for block in blocks],
        "_training_data_": tuple(t.cpu().numpy() for t in setting.posterior.data),
        "_cache": {},
    }
    if model.y_scaling is not None:
        attributes["noise_std_samples_"] = noise_std.double().numpy() * model.y_scaling.scale
        attributes["y_mean_"], attributes["y_scale_"] = model.y_scaling
    return attributes


def _on_reference_set(setting: Setting, theta: Tensor) -> Array:
    """One representative of every draw's orbit."""
    group = setting.model.network.symmetry()
    flat = theta.flatten(0, 1)
    if not setting.estimator.remove_symmetries or not group.factors or len(flat) < 2:
        return np.asarray(theta.numpy())
    aligned = relabel(
        flat.double(), group, n_starts=4, max_sweeps=100,
        generator=generator_from(setting.seeds.labels),
    ).theta  # fmt: skip
    return np.asarray(aligned.to(theta.dtype).reshape(theta.shape).numpy())


def findings(
    setting: Setting,
    explored: Explored,
    draws: Draws,
    weighing: Weighing | None,
    problems: list[str],
) -> dict[str, Any]:
    """Modes, evidence and diagnostics."""
    trusted = weighing is not None and not problems
    offset = log_jacobian(setting.context.rows.weight, setting.model.y_scaling)
    modes: list[Mode] = []
    if weighing is not None:
        n_explorers = explored.starts if explored.chains else 0
        modes = list_modes(weighing, n_explorers, draws.home, offset, trusted)
    found = diagnose(
        setting.posterior, explored.chains, explored.draws.position, draws.position,
        draws.chain_weights, explored.starts,
    )  # fmt: skip
    if draws.home is not None:
        found.warnings += disagreement(setting.posterior, draws.position, modes)
    log_z = weighing.weights if trusted and weighing is not None else None
    return {
        "modes_": modes,
        "log_evidence_": log_z.log_evidence + offset if log_z else float("nan"),
        "log_evidence_std_error_": log_z.log_evidence_standard_error if log_z else float("nan"),
        "diagnostics_": found,
    }


def n_iter(explored: Explored) -> int:
    """Moves of the chain that made most; without chains, most stages of an island."""
    if explored.chains is None:
        return max((len(i.stages) for i in explored.islands), default=0)
    tally = explored.chains.warmup.n_moves + explored.chains.sampling.n_moves
    return int(tally.max())
