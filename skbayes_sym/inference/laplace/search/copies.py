r"""Restarts that end in symmetric copies of a mode that another one finds.

Two restarts are as far apart as the posterior's width says: by their functions at the rows in units
of the noise (of labels by twice Hellinger's distance), their weights, brought onto one another by
the network's symmetry, in units of the prior, and their scales and noises,

.. math:: \sum_n w_n \beta (f_n - f'_n)^2 + \sum_k \alpha_k (\theta_k - (g\theta')_k)^2
          + \tfrac12 \sum_g n_g (\Delta\log\alpha_g)^2 + \tfrac12 N (\Delta\log\beta)^2 .

Distinct modes of networks of two to ten units lie at 2 and beyond, copies that have converged at 0.
"""

import torch
from torch import Tensor

from skbayes_sym.inference.laplace.search.evidence_problem import EvidenceProblem, SearchHyper

_NEAR = 0.1  # squared distance up to which two restarts are on their way to copies of one mode


def first_alike(problem: EvidenceProblem, theta: Tensor, hyper: SearchHyper) -> list[int]:
    """For each of R restarts the first of those that it is a copy of, which may be itself.

    Functions are compared first, weights only where those agree; O(R^2 N) and an assignment for
    each pair and hidden layer. Restarts that learn from different rows are never alike.
    """
    alike = list(range(len(theta)))
    if problem.share is not None or len(theta) < 2:
        return alike
    sizes = problem.prior.sizes.to(theta)
    weight = problem.total_weight.expand(hyper.noise_precision.shape[1])
    logs = torch.cat([hyper.log_precision, hyper.noise_precision.log()], 1)
    logs = logs * (0.5 * torch.cat([sizes, weight])).sqrt()
    apart = torch.cdist(logs, logs, compute_mode="donot_use_mm_for_euclid_dist").square()
    apart = (apart + problem.function_distances(theta, hyper)).cpu()
    if not bool((apart < _NEAR).triu(1).any()):
        return alike
    group, theta = problem.network.symmetry(), theta.cpu()
    units = (0.5 * hyper.log_precision).exp()[:, problem.prior.group].cpu()
    for r in range(1, len(theta)):
        for s in range(r):
            if alike[s] != s or apart[s, r] >= _NEAR:
                continue
            goal = theta[s] * units[s]
            moved, _ = group.align(theta[r] * units[s], goal)
            if apart[s, r] + (moved - goal).square().sum() < _NEAR:
                alike[r] = s
                break
    return alike
