r"""Moments of transformed targets whose distribution is made of normals without being a mixture.

Predictive distributions of positive targets are mixtures of normals whose density is multiplied by
a constant on each side of zero, and those of models of a logarithm are exponentials of normals. A
linear pool has such parts. Moments of a transformation are sums over the normals of all parts,
which takes far fewer nodes than an integral over a density that is known at points only.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from skbayes_sym.base.closed_forms import mixture_moments
from skbayes_sym.base.rows import Array
from skbayes_sym.base.target_transformation import TargetTransformation, exponential_transformations
from skbayes_sym.base.transformed_normals import (
    DensityStep,
    TransformationChain,
    TransformedNormals,
)
from skbayes_sym.models.log_targets import LogTargets
from skbayes_sym.models.positive_targets import PositiveTargets
from skbayes_sym.models.predictive_mixtures import LinearPool, NormalMixture, TargetPredictive

_MAX_MASS_ERROR = 1e-5  # of the probabilities of all parts, which should add up to 1


class NormalPart(NamedTuple):
    """Part of a distribution: a transformation of a mixture of normals.

    Attributes
    ----------
    weight : float
        Weight of the part.
    normals : NormalMixture
        Mixture of normals.
    transformations : list of TargetTransformation
        Maps of the normal variable to the target, the innermost first.
    """

    weight: float
    normals: NormalMixture
    transformations: list[TargetTransformation]


def normal_parts(distribution: TargetPredictive) -> list[NormalPart] | None:
    """Return the parts of a distribution, or None if a part isn't made of normals."""
    if isinstance(distribution, NormalMixture):
        return [NormalPart(1.0, distribution, [])]
    if isinstance(distribution, LogTargets):
        transformations = exponential_transformations(distribution.location, distribution.scale)
        return [NormalPart(1.0, distribution.base, transformations)]
    if not isinstance(distribution, LinearPool):
        return None
    parts = []
    pairs = zip(distribution.component_weights, distribution.components, strict=True)
    for weight, component in pairs:
        inner = normal_parts(component)
        if inner is None:
            return None
        parts += [part._replace(weight=weight * part.weight) for part in inner]
    return parts


def transformed_moments(
    distribution: TargetPredictive, transformations: Sequence[TargetTransformation]
) -> tuple[Array, Array, npt.NDArray[np.bool_]] | None:
    """Return the moments of a transformation of a distribution that is made of normals.

    Parameters
    ----------
    distribution : TargetPredictive
        Distribution of N rows and T targets.
    transformations : sequence of TargetTransformation
        Transformations of its target, the innermost first.

    Returns
    -------
    mean, variance : ndarray of shape (N, T)
        Moments of the transformed target.
    is_known : ndarray of shape (N,)
        False for rows whose probability lies in the far tails of all normals.

    None if the distribution isn't made of normals, or if a transformation has poles.
    """
    step = None
    base = distribution
    if isinstance(distribution, PositiveTargets):
        base = distribution.base
        step = DensityStep(
            np.full((1, 1), distribution.origin),
            distribution.factor_below.numpy(),
            distribution.factor_above.numpy(),
        )
    parts = normal_parts(base)
    if parts is None:
        return None
    weights = []
    means = []
    variances = []
    for part in parts:
        chain = TransformationChain(
            [*part.transformations, *transformations], distribution.n_targets
        )
        if chain.poles:
            return None
        inner = TransformationChain(part.transformations, distribution.n_targets)
        normals = part.normals
        mixture_weights = part.weight * normals.weights.double().numpy()
        for weight, loc, scale in zip(mixture_weights, normals.loc, normals.scales, strict=True):
            variables = TransformedNormals(chain, loc.double().numpy(), scale.double().numpy())
            mass, mean, variance = variables.weighted_moments(step and step.move(inner))
            weights.append(weight * mass)
            means.append(mean)
            variances.append(variance)
    total = np.sum(weights, axis=0)
    is_known = np.abs(total - 1.0).max(axis=1) < _MAX_MASS_ERROR
    mean, variance = mixture_moments(np.stack(weights), np.stack(means), np.stack(variances))
    return mean, variance, is_known
