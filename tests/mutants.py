"""Plausible bugs, planted one at a time: does the suite see them?

    python tests/mutants.py [FIRST LAST]        prints each mutant, caught or not, and the count
    python tests/mutants.py fast [FIRST LAST]   the same, trusting that the tests pass as they are
    python tests/mutants.py check               that every text is there, without running a test

Each is a replacement of text in a temporary copy, for which only the test files of its module are
run, in a process of its own that has torch and scikit-learn loaded already. A mutant that doesn't
end within `_CPU_SECONDS` counts as caught: no suite would pass it.
"""

import os
import resource
import shutil
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
_CPU_SECONDS = 120


class Mutant(NamedTuple):
    """A bug, and the tests (arguments of pytest) that must see it."""

    module: str  # below skbayes_sym/
    before: str
    after: str
    tests: str = ""  # below tests/; by default the file named after the module


MUTANTS = [
    # Numbers and linear algebra.
    Mutant("numerics/gaussian.py", "squares - 1.0 - log_ratio)", "squares - 1.0 + log_ratio)"),
    Mutant("numerics/gaussian.py", "0.5 * (trace + squares - n - log_det)",
           "0.5 * (trace + squares - n + log_det)"),
    Mutant("numerics/gaussian.py", "(squares + log_det + n * LOG_2PI)",
           "(squares + log_det + LOG_2PI)"),
    Mutant("numerics/gaussian.py", "+ LOG_2PI) - log_scale", "+ LOG_2PI) + log_scale"),
    Mutant("numerics/random.py", "/ len(values) ** 0.5)", "/ len(values))"),
    Mutant("numerics/optimise.py", "np.mean(last) - np.mean(before)",
           "np.mean(before) - np.mean(last)", "numerics/test_convergence.py"),
    Mutant("numerics/optimise.py", "tol + 3.0 * self.standard_error",
           "tol - 3.0 * self.standard_error", "numerics/test_convergence.py"),
    Mutant("numerics/gaussian.py", "weights / weights.sum()", "weights / weights.max()"),
    Mutant("numerics/linalg.py", "2.0 * factor.diagonal(dim1=-2, dim2=-1).log()",
           "factor.diagonal(dim1=-2, dim2=-1).log()"),
    Mutant("numerics/permanent.py", "total.log().add_(peak)", "total.log().sub_(peak)"),
    Mutant("numerics/permanent.py", "torch.xlogy(rest, rest) - torch.xlogy(plan, plan)",
           "-torch.xlogy(rest, rest) - torch.xlogy(plan, plan)"),
    Mutant("numerics/permanent.py", "torch.minimum(bounds[:2]", "torch.maximum(bounds[:2]"),
    Mutant("numerics/random.py", "-1.0, 1.0).to(q)", "1.0, 1.0).to(q)"),

    # Symmetries and their gaps.
    Mutant("symmetry/relabelling.py", "g = group.compose(h, g)", "g = group.compose(g, h)",
           "inspection/test_symmetry.py"),
    Mutant("symmetry/gaps/unit_gap.py", "logsumexp(dim=0) - log(self.n_permutations)",
           "logsumexp(dim=0) - log(self.n_permutations - 1)"),
    Mutant("symmetry/gaps/unit_gap.py", "+ lgamma(d + 1) - log(n)", "+ lgamma(d) - log(n)"),
    Mutant("symmetry/gaps/drawn_gap.py", "scale = some.mean(0)", "scale = 0.0 * some.mean(0)"),
    Mutant("estimators/laplace/evidence_method.py", "alone + gap.estimate(normal, ",
           "alone - gap.estimate(normal, ", "estimators/laplace/test_modes.py"),
    Mutant("symmetry/gaps/unit_gap.py", "return (terms - log_tau).logsumexp",
           "return (terms + log_tau).logsumexp"),
    Mutant("symmetry/gaps/unit_gap.py", "noise * noise).sum(-1) + log_scale",
           "noise * noise).sum(-1) - log_scale"),
    Mutant("symmetry/gaps/unit_gap.py", ".sum(-1) + 2.0 * log_scale", ".sum(-1) + log_scale"),
    Mutant("symmetry/gaps/unit_gap.py", "d_loc, -d_scale / scale.detach()",
           "d_loc, d_scale / scale.detach()", "symmetry/gaps/test_laws.py"),
    Mutant("symmetry/gaps/unit_gap.py", "layer.log_order - permanent(ratios", "-permanent(ratios"),
    Mutant("symmetry/gaps/unit_tables.py", "torch.where(stays, odd - plain, even + odd)",
           "torch.where(stays, odd, even + odd)", "symmetry/gaps/test_laws.py"),
    Mutant("symmetry/gaps/unit_tables.py", "inner = _signs(table.outer, choice, sign)",
           "inner = sign.new_ones(table.outer.shape[1])", "symmetry/gaps/test_laws.py"),
    Mutant("inference/gaussian_vi/elbo.py", "* noise).sum(1), -sd", "* noise).sum(1), -2.0 * sd",
           "estimators/vi/test_modules.py"),
    Mutant("symmetry/gaps/row_gaps.py", "log(2.0) - F.softplus(-2.0 * log_ratio)",
           "log(2.0) - F.softplus(-log_ratio)", "symmetry/gaps/test_rows.py"),
    Mutant("symmetry/gaps/row_gaps.py", "return a + a.sqrt() * z", "return a - a.sqrt() * a",
           "symmetry/gaps/test_rows.py"),
    Mutant("symmetry/gaps/translations.py", "0.5 * (logs - posterior.log_det_precision())",
           "0.5 * (logs + posterior.log_det_precision())"),
    Mutant("symmetry/gaps/haar_integral.py", "s + F.softplus(-2.0 * s) - log(2.0)",
           "s + F.softplus(-2.0 * s)"),
    Mutant("symmetry/gaps/haar_integral.py", "r.sum(-1) - 0.5 * pairs - 0.5 * x",
           "r.sum(-1) + 0.5 * pairs - 0.5 * x"),
    Mutant("symmetry/gaps/haar_integral.py", "_rotations_3(a, b, -c))", "_rotations_3(a, b, c))"),
    # Rules of operations: each makes a false symmetry somewhere.
    *(Mutant(f"symmetry/modules/{module}.py", before, after, "symmetry/modules/test_found.py")
      for module, before, after in [
          ("rules", '"relu leaky_relu": (None, 1)', '"relu leaky_relu": (1, 1)'),
          ("rules", "r.pin(w, range(2, len(w)))", "r.pin(w, range(3, len(w)))"),
          ("rules", "r.pin(w, [0])", "r.pin(w, [])"),
          ("rules", "    r.mix(x, [dim])\n", "    r.mix(x, [])\n"),
          ("rules", "[a, b], (SAME, SAME))", "[a, b], (SUM, SUM))"),
          ("reader", "added(o.characters[kind], p.characters[kind])", "o.characters[kind]"),
          ("reader", "atoms.forget([atoms.resolve(axis) for axis in kept], summed)", "pass"),
          ("reader", "aligned | summed if names is None else names & (aligned | summed)",
           "aligned | summed if names is None else names"),
          ("atoms", "self._depends[atom] = set(allowed) if before is None else before & allowed",
           "self._depends[atom] = set(allowed) if before is None else before"),
          ("found", "if kind == SCALE or constant.add(", "if True or constant.add("),
          ("found", "if not beside.add(self._bits(atom, set(solution))):", "if False:"),
      ]),
    Mutant("symmetry/axis_units.py", "(self._carried(k, x, g, batch) for", "(x for",
           "symmetry/test_groups.py"),
    Mutant("symmetry/axis_units.py", "part.inverse(self._carried(k, g[k], back, batch))",
           "part.inverse(g[k])", "symmetry/test_groups.py"),
    Mutant("symmetry/axis_units.py", "for axis in range(1 + e.is_pair):\n                if",
           "for axis in range(1):\n                if", "symmetry/test_groups.py"),
    Mutant("symmetry/axis_units.py", "if flips[axis]]", "if any(flips)]",
           "symmetry/modules/test_found.py"),
    Mutant("symmetry/translation.py", "self.element(reference - theta)",
           "self.element(theta - reference)"),
    # Likelihoods, priors, predictions.
    Mutant("models/likelihoods/noise.py", "(0.5 * (z * z) + self.log_noise + 0.5",
           "(0.5 * (z * z) - self.log_noise + 0.5", "models/likelihoods/test_families.py"),
    Mutant("models/likelihoods/noise.py", "d_variance = (-0.5 * precision)",
           "d_variance = (0.5 * precision)",
           "models/likelihoods/test_expectations.py "
           "models/likelihoods/test_base.py"),
    Mutant("models/likelihoods/likelihood.py", "_OF_DENSITY = (\n    \"kind\", ",
           "_OF_DENSITY = (\n    ", "test_extension.py"),
    Mutant("models/likelihoods/likelihood.py", "\"sites\", \"given\",", "\"sites\",",
           "test_extension.py"),
    Mutant("models/likelihoods/noise.py", "0.5 * (df + 1) * torch.log1p", "0.5 * df * torch.log1p",
           "models/likelihoods/test_families.py"),
    Mutant("models/likelihoods/noise.py", "df / (df - 2.0)", "df / (df - 1.0)",
           "models/likelihoods/test_families.py"),
    Mutant("models/likelihoods/counts.py", "rate = (mean + 0.5 * variance).exp()",
           "rate = (mean + variance).exp()",
           "models/likelihoods/test_expectations.py models/likelihoods/test_base.py"),
    Mutant("models/likelihoods/counts.py", "(y + size) * mean)", "y * mean)",
           "models/likelihoods/test_families.py"),
    Mutant("models/likelihoods/noise.py", "+ 2.0 * self.spread**2 * v_second",
           "- 2.0 * self.spread**2 * v_second", "models/likelihoods/test_heteroscedastic.py"),
    Mutant("models/likelihoods/noise.py", "2**0.5 * self._slope(log_std)], -1)",
           "self._slope(log_std)], -1)", "models/likelihoods/test_heteroscedastic.py"),
    Mutant("models/predictive_mixtures.py", "(self.loc - self.mean()) ** 2 + self.variance",
           "(self.loc - self.mean()) ** 2", "models/test_predictive.py"),
    Mutant("models/predictive_mixtures.py",
           "self._weights * self.noise_variance.expand_as(self.loc)",
           "self.noise_variance.expand_as(self.loc) / len(self.loc)", "models/test_predictive.py"),
    Mutant("models/predictive_mixtures.py", "likelihood.log_prob(self.outputs, y) - jacobian",
           "likelihood.log_prob(self.outputs, y) + jacobian", "models/test_predictive.py"),
    Mutant("models/predictive_mixtures.py", "noise_variance=self.noise_variance * scale**2",
           "noise_variance=self.noise_variance * scale", "models/test_predictive.py"),
    Mutant("models/priors.py", "for rate in rates) - self.n_groups",
           "for rate in rates) + self.n_groups", "models/test_learned_scales.py"),
    Mutant("models/priors.py", "torch.digamma(a + 0.5 * s.sizes", "torch.digamma(a + s.sizes",
           "models/test_learned_scales.py"),
    Mutant("estimators/linear/design.py", "not np.isf", "np.isf", "estimators/test_extremes.py"),
    Mutant("estimators/regressor.py", "x.device, torch.float64), scale.to(x.device, torch.float64)",
           "x), scale.to(x)", "estimators/test_extremes.py"),
    Mutant("models/predictive_mixtures.py", "self.log_weights.to(self._like).softmax(0)",
           "self.log_weights.exp()", "estimators/test_extremes.py"),
    Mutant("models/predictive_mixtures.py", "left_half - right).abs()",
           "left_half - right).abs() * 0.0", "models/test_crps.py"),
    Mutant("models/predictive_mixtures.py", "(1.0 - law.cdf(x)).square(), y, high)",
           "law.cdf(x).square(), y, high)", "models/test_crps.py"),
    Mutant("models/predictive_mixtures.py", "roots().real", "roots() + 0j", "models/test_crps.py"),
    Mutant("models/predictive_mixtures.py", "topk(1 + step // 8, dim=0)", "topk(1, dim=0)",
           "models/test_crps.py"),
    # Draws of functions.
    Mutant("inference/laplace/labels_predictive.py", "shrunk) @ left_vectors.mT +",
           "shrunk) @ left_vectors.mT -", "estimators/test_predictive.py"),
    Mutant("inference/laplace/predictors.py", "symmetric_root(self.variance_scale * ",
           "symmetric_root(", "estimators/test_predictive.py"),
    Mutant("estimators/regressor.py", "law.uncertainty().epistemic.sqrt() if",
           "law.uncertainty().epistemic if", "estimators/test_predictive.py"),
    # Arguments.
    Mutant("estimators/_fit/run.py", "Interval(Integral, None, -1, closed=\"right\")", "Integral",
           "estimators/test_bad_input.py"),
    Mutant("estimators/_fit/building.py", 'np.errstate(over="ignore")', "np.errstate()",
           "estimators/test_refused.py"),
    Mutant("model_selection/_scorers.py", "not isinstance(scoring, str) or scoring", "scoring"),
    Mutant("model_selection/_entries.py", "and not isinstance(argument, Mapping)", "and False"),
    Mutant("inspection/invariance.py", "if not len(self.half_widths)", "if False"),
    Mutant("inspection/symmetry.py", "not isinstance(color_by, str) or color_by", "color_by"),
    Mutant("estimators/laplace/families.py", "np.array(self.augmentation.displacement)",
           "displacement", "estimators/laplace/test_lila.py"),
    # Files.
    Mutant("saving/values.py", 'self._arrays.pop(e["name"])', 'self._arrays[e["name"]]',
           "saving/test_damage.py"),
    Mutant("saving/values.py", "self._spend(dtype.itemsize * len(items))", "self._spend(0)",
           "saving/test_damage.py"),
    Mutant("saving/values.py", '{"memory": None} if', "{} if", "saving/test_damage.py"),
    Mutant("saving/values.py", "        _check_predictions(estimator)", "        pass",
           "saving/test_damage.py"),
    # Posteriors of networks, samplers, evidences.
    Mutant("inference/log_density.py", "0.5 * log(2 / pi) * len(noise)",
           "0.5 * log(1 / pi) * len(noise)"),
    Mutant("inference/log_density.py", "slope[self._n_theta :] = 1.0",
           "slope[self._n_theta :] = 0.0"),
    Mutant("inference/sampling/kernels.py",
           "p = momentum.addcmul(eps, kick(state.gradient), value=0.5)",
           "p = momentum.addcmul(eps, kick(state.gradient), value=1.0)",
           "inference/sampling/kernels/test_hmc.py"),
    Mutant("inference/sampling/kernels.py", "0.5 * kinetic.sum(1) - (end",
           "0.5 * kinetic.sum(1) + (end", "inference/sampling/kernels/test_hmc.py"),
    Mutant("inference/sampling/kernels.py", " + log_scale.double().sum(1)", "",
           "inference/sampling/kernels/test_rescaling.py"),
    Mutant("inference/sampling/kernels.py", "if directions is not None:", "if False:",
           "inference/sampling/kernels/test_rescaling.py"),
    Mutant("inference/sampling/modes/bridge.py",
           "log(len(log_l_proposal)) - total, log(n_effective) - total",
           "log(n_effective) - total, log(len(log_l_proposal)) - total"),
    Mutant("inference/sampling/modes/bridge.py", "(from_proposals + from_draws) ** 0.5",
           "0.5 * (from_proposals + from_draws) ** 0.5"),
    Mutant("inference/sampling/modes/bridge.py", "torch.cat(sums) - log(table.order)",
           "torch.cat(sums)"),
    Mutant("inference/diagnostics.py", "np.sqrt((n - 1) / n + between / within)",
           "np.sqrt(between / within)"),
    Mutant("inference/diagnostics.py", "rho = 1.0 - (within - covariance) / total",
           "rho = 1.0 - (within + covariance) / total"),
    # Variational and linear inference.
    Mutant("inference/gaussian_vi/elbo.py", "terms.sub_(self._log_variance)",
           "terms.add_(self._log_variance)"),
    Mutant("inference/gaussian_vi/elbo.py", "log_scale - 0.5 * n_params", "log_scale"),
    Mutant("inference/gaussian_vi/mean_field.py", "scale).double() ** 2).to(like)",
           "scale).double()).to(like)", "estimators/vi/test_objects.py"),
    Mutant("inference/gaussian_vi/layers.py", "(LOG_2PI + 2.0 * self.log_noise)",
           "(LOG_2PI - 2.0 * self.log_noise)", "inference/gaussian_vi/test_layerwise.py"),
    Mutant("inference/gaussian_vi/layers.py", "- likelihood).mean() - log_hyperprior",
           "- likelihood).mean() + log_hyperprior", "inference/gaussian_vi/test_layerwise.py"),
    Mutant("inference/gaussian_vi/hidden_layers.py", "2.0 * per_input(prior_scale, loc).log()",
           "per_input(prior_scale, loc).log()", "inference/gaussian_vi/test_layerwise.py"),
    Mutant("inference/linear/sites.py", "spread.kl + 0.5 * (loc * loc).sum() / prior_variance",
           "spread.kl - 0.5 * (loc * loc).sum() / prior_variance"),
    Mutant("inference/linear/sites.py", "state.terms.gradient + torch.einsum(\"ncd,nd->nc\"",
           "state.terms.gradient - torch.einsum(\"ncd,nd->nc\""),
    Mutant("inference/linear/conjugate.py", "log(2.0 * pi * s2) + misfit / s2 + volume",
           "log(2.0 * pi * s2) + misfit / s2 - volume"),
    Mutant("inference/linear/conjugate.py", "variance * self.projection / s2",
           "variance * self.projection"),
    # Laplace.
    Mutant("inference/linear/conjugate.py", "return sizes.square(), right_vectors.mT",
           "return sizes, right_vectors.mT"),
    Mutant("inference/linear/conjugate.py", "rows * weight.sqrt()[:, None]",
           "rows * weight[:, None]"),
    Mutant("inference/linear/low_rank.py", "np.array(seen) + free[:, None] * unseen",
           "np.array(seen) + unseen", "inference/linear/test_conjugate.py"),
    Mutant("inference/laplace/marginal_likelihood.py", "self.log_prior - 0.5 * self.log_det",
           "self.log_prior + 0.5 * self.log_det"),
    Mutant("inference/laplace/marginal_likelihood.py",
           "log_prior = 0.5 * (sizes * log_precision - prior * norms)",
           "log_prior = 0.5 * (sizes * log_precision + prior * norms)"),
    Mutant("inference/laplace/laplace_posterior.py",
           "precision.quadratic(away), -precision.log_det(), n",
           "precision.quadratic(away), precision.log_det(), n",
           "inference/laplace/test_marginal_likelihood.py"),
    # Factorisation.
    Mutant("inference/factorization/gibbs.py", "standard_gamma(max(0.5 * off.total_weight, 0.5))",
           "standard_gamma(max(0.5 * (off.total_weight - 1), 0.5))"),
    Mutant("inference/factorization/gibbs.py", "half + normal.unsqueeze(-1)", "half"),
    Mutant("inference/factorization/sides.py",
           "first / (sqrt(noise.n_components) * noise.variance)",
           "first / (noise.n_components * noise.variance)"),
    Mutant("inference/factorization/sides.py", "total -= 2.0 * float((mean[rows] * sums.first)",
           "total -= float((mean[rows] * sums.first)", "inference/factorization/test_vi.py"),
    Mutant("inference/factorization/entry_sites.py", "precision = (-2.0 * terms.d_variance",
           "precision = (-1.0 * terms.d_variance"),
    Mutant("inference/factorization/entry_predictor.py", "outputs, weights.log()", "outputs, None"),
    Mutant("models/likelihoods/ordinal.py", "d_steps[:, 1:] *=", "d_steps[:, :1] *="),
    Mutant("inference/factorization/hyperpriors.py", "chisquare(b + n - torch.arange(b).numpy())",
           "chisquare(b + n - 1 - torch.arange(b).numpy())"),
    Mutant("inference/factorization/hyperpriors.py", "0.5 * dof * b * log(2.0) - 0.5 * dof",
           "0.5 * dof * b * log(2.0) + 0.5 * dof"),
    # Scales and noise by the evidence.
    Mutant("inference/laplace/search/gauss_newton.py", "inner.diagonal(dim1=1, dim2=2).add_(1.0)",
           "inner.diagonal(dim1=1, dim2=2).add_(0.0)"),
    Mutant("inference/laplace/search/gauss_newton.py",
           "return self.diagonal.log().sum(1) + log_det", "return log_det"),
    Mutant("inference/laplace/search/gauss_newton.py",
           "return 1.0 - torch.cholesky_inverse(self.inner)",
           "return torch.cholesky_inverse(self.inner)"),
    Mutant("inference/laplace/search/evidence_problem.py", "root = beta.sqrt()", "root = beta",
           "inference/laplace/search/test_numbers.py"),
    Mutant("inference/laplace/search/mode_search.py", "ended | ~_rises(", "ended | _rises(",
           "inference/laplace/search/test_numbers.py"),
    Mutant("estimators/base.py", 'fitted_with.get("likelihood", self.likelihood)',
           "self.likelihood", "estimators/test_bad_input.py"),
    Mutant("estimators/stacking/stacks.py", "n_tests[test] += 1", "n_tests[test] = 1"),
    Mutant("estimators/laplace/effort.py", "most_behind: float = 0.25", "most_behind: float = 25.0",
           "estimators/laplace/test_modes.py"),
    Mutant("inference/laplace/search/beginnings.py", "share=(fold != held", "share=(fold == held"),
    Mutant("inference/laplace/search/beginnings.py", "mean > 0.5 * error", "mean > -0.5 * error"),
    Mutant("inference/laplace/search/beginnings.py",
           "covariance.diagonal(dim1=-2, dim2=-1), noise)",
           "covariance.diagonal(dim1=-2, dim2=-1), noise.sqrt())"),
    Mutant("inference/laplace/search/evidence_problem.py",
           "log_prior - 0.5 * system.log_det",
           "log_prior - 0.5 * system.log_det + prior.log_hyperprior(log_precision)",
           "inference/laplace/search/test_numbers.py"),
    Mutant("inference/laplace/search/evidence_problem.py", "replace(self, share=self.share[which])",
           "self", "inference/laplace/search/test_numbers.py"),
    Mutant("estimators/laplace/evidence_method.py", "self._how(problem, is_clear=is_clear)",
           "self._how(problem)", "estimators/laplace/test_effort.py"),
    Mutant("estimators/laplace/evidence_method.py", "doubtful = width == usual and chosen == few",
           "doubtful = False", "estimators/laplace/test_effort.py"),
    Mutant("estimators/laplace/evidence_method.py", "<= effort.most_unexplained",
           ">= effort.most_unexplained", "estimators/laplace/test_effort.py"),
    Mutant("estimators/laplace/evidence_method.py", "steps, max_more=0).resumed(problem",
           "steps, max_more=0).resumed(some", "estimators/laplace/test_effort.py"),
    Mutant("estimators/laplace/effort.py", "n_rows > self.searched_rows and n_rows *", "n_rows *",
           "estimators/laplace/test_effort.py"),
    Mutant("estimators/laplace/effort.py", "if n_tried and n_rows >= n_params:",
           "if n_tried and n_rows < n_params:"),
    Mutant("inference/laplace/search/mode_search.py", "higher = here.score > state.best.score",
           "higher = here.score < state.best.score", "inference/laplace/search/test_numbers.py"),
    Mutant("inference/laplace/search/mode_search.py", "moved, _ = group.align(theta[r] * units[s],",
           "moved, _ = theta[r] * units[s], (", "inference/laplace/search/test_numbers.py"),
    Mutant("inference/laplace/search/mode_search.py", "argsort(descending=True, stable=True)",
           "argsort(descending=False, stable=True)", "inference/laplace/search/test_numbers.py"),
    Mutant("inference/laplace/laplace_posterior.py", "weight.multinomial(",
           "torch.ones_like(weight).multinomial(", "inference/laplace/test_marginal_likelihood.py"),
    Mutant("inference/laplace/search/evidence_problem.py", "symmetric_root(weighted) @",
           "weighted @", "inference/laplace/search/test_labels.py"),
    Mutant("models/priors.py", "variance /= float(np.prod(size[1:]))", "variance /= 1.0",
           "models/test_learned_scales.py"),
    Mutant("inference/pooling.py", "p[first], p[second] = share, both - share",
           "p[first], p[second] = both - share, share", "inference/pooling/test_pool.py"),
    Mutant("inference/pooling.py", "down / max(both - share, 1e-300)", "down / (both - share)",
           "inference/pooling/test_pool.py"),
    Mutant("inference/pooling.py", "(law.noise_variance * factor.square())",
           "(law.noise_variance / factor.square())", "inference/pooling/test_pool.py"),
    Mutant("inference/gaussian_process.py", "loc = y - variance * solved",
           "loc = y + variance * solved"),
    Mutant("estimators/stacking/parts.py", "column[node]) <= threshold",
           "column[node]) > threshold", "estimators/stacking/test_stacks.py"),
    Mutant("inference/pooling.py", "kept + softmax, mixed +", "mixed + softmax, kept +",
           "inference/pooling/test_pool.py"),
    Mutant("estimators/stacking/combining.py", "base.log_density(rows.rows.x, rows.targets)",
           "part.law(rows.rows).log_prob(rows.y)", "estimators/stacking/test_stacks.py"),
    Mutant("estimators/stacking/combining.py", "prior = ((score - score.max())",
           "prior = (0.0 * (score - score.max())", "estimators/stacking/test_stacks.py"),
    Mutant("distillation/schooling.py", "share = torch.rand(1, generator=generator)",
           "share = torch.full((1,), 0.5)", "test_distillation.py"),
    Mutant("estimators/stacking/combining.py", "if gap > task.effort.race", "if gap < 0.0",
           "estimators/stacking/test_stacks.py"),
    Mutant("estimators/bayesian_mlp/pool.py", "expit(linear - networks)",
           "expit(networks - linear)"),
    Mutant("estimators/laplace/effort.py", "n_rows * n_outputs > most",
           "n_rows * n_outputs < most"),
    Mutant("inference/map.py", "root = (share * weight[chosen]).sqrt()\n    with",
           "root = share * weight[chosen]\n    with", "inference/test_member_scales.py"),
    Mutant("inference/map.py", "leverage = 1.0 - torch.cholesky_inverse",
           "leverage = torch.cholesky_inverse", "inference/test_member_scales.py"),
    Mutant("inference/map.py", "freedoms = (rows.weight.sum() - taken)",
           "freedoms = (rows.weight.sum() - 0.5 * taken)", "inference/test_member_scales.py"),
    Mutant("inference/map.py", "self._holds_noise = True", "self._holds_noise = False",
           "inference/test_member_scales.py"),
    Mutant("estimators/ensemble/members.py", "scale.to(weights).expand_as(weights), strict",
           "scale.to(weights).expand_as(weights).flip(0), strict",
           "estimators/ensemble/test_estimator.py"),
    # Units of the data, in the estimators.
    Mutant("estimators/_fit/training.py", "return -float(self.rows.weight.sum() * np.log",
           "return float(self.rows.weight.sum() * np.log", "estimators/test_predictive.py"),
    Mutant("estimators/_fit/rows.py", "merged = np.bincount(origin[up], weights=weight[up]",
           "merged = np.bincount(origin[up], weights=weight"),
    # Gates, waits, interrupts.
    Mutant("inference/gaussian_vi/elbo.py", "_order - float(values.min())", "_order"),
    Mutant("inference/gaussian_vi/elbo.py", "or step % self._hold == 0", "or False"),
    Mutant("inference/gaussian_vi/elbo.py", "sub_(held * share)", "sub_(held)"),
    Mutant("inference/gaussian_vi/elbo.py", "addcmul_(scaled_loc, self._share)",
           "add_(scaled_loc)"),
    Mutant("estimators/vi/mean_field_training.py", "hold=symmetry_gap.hold", "hold=1",
           "estimators/vi/test_objects.py"),
    Mutant("estimators/vi/mean_field_training.py", "round(share * max_iter)", "round(share)",
           "estimators/vi/test_objects.py"),
    Mutant("estimators/_fit/warnings.py", '("fifth", 5, 10.0 * tol)', '("fifth", 10, 10.0 * tol)',
           "estimators/test_convergence.py"),
    Mutant("estimators/vi/mean_field_training.py", "if share > 0.95:", "if share < 0.95:",
           "estimators/vi/test_estimator.py"),
    Mutant("estimators/vi/mean_field_training.py", "elbo >= highest - margin", "elbo >= highest",
           "estimators/vi/test_objects.py"),
    Mutant("inference/gaussian_vi/elbo.py", "self._next_check = step + self._period",
           "self._next_check = step"),
    Mutant("inference/sampling/chains.py", "self._unread[move // thin]",
           "self._unread[move // thin - 1]"),
    Mutant("inference/laplace/search/gauss_newton.py",
           "torch.where(damping > start, damping, lowered)",
           "torch.where(damping < start, damping, lowered)"),
    Mutant("inference/sampling/modes/confined.py", "warm.complete and _boundary_loss",
           "_boundary_loss"),
    Mutant("estimators/bayesian_mlp/pool.py", "[fit.stop_reason for fit in self if",
           "[fit.stop_reason for fit in self[:2] if", "estimators/test_interrupts.py"),
    Mutant("inference/factorization/vi.py", "WORTH, _MORE_SWEEPS = 1.0, 60",
           "WORTH, _MORE_SWEEPS = 0.0, 60"),
    Mutant("estimators/factorization/side_features.py", "self.table.iloc[order[place]]",
           "self.table.iloc[place]", "estimators/factorization/test_ratings.py"),
    Mutant("estimators/factorization/entry_law.py", "(self.labels[1:] > y)",
           "(self.labels[1:] >= y)", "estimators/factorization/test_ratings.py"),
    Mutant("model_selection/_entries.py", "place[fold < i]", "place[fold != i]"),
    Mutant("models/likelihoods/ordinal.py", "torch.erfc(-root_half * b) - torch",
           "torch.erfc(root_half * b) - torch"),
    Mutant("estimators/factorization/matrix_factorization.py",
           "        self._validate_params()\n        refuse(", "        refuse(",
           "estimators/factorization/test_ratings.py"),
    Mutant("inference/factorization/context.py", "moved @ (gram @ moved - 2.0 * cross)",
           "moved @ (gram @ moved - cross)", "inference/factorization/test_context.py"),
    Mutant("inference/factorization/context.py", "mean.square().sum() + cov.trace()",
           "mean.square().sum()", "inference/factorization/test_context.py"),
    Mutant("estimators/factorization/predictions.py", "X.iloc[place], None", "X, None",
           "estimators/factorization/test_ratings.py"),
    Mutant("estimators/factorization/fitting.py", "growth: float = 1.5", "growth: float = 15.0",
           "estimators/factorization/test_ratings.py"),
    Mutant("estimators/mcmc/weighing.py", "return ledger, rest - ledger.left",
           "return ledger, rest", "estimators/mcmc/test_modes.py"),
    Mutant("estimators/mcmc/weighing.py", "max(0.5 * rest, rest - asked)", "rest",
           "estimators/mcmc/test_modes.py"),
    Mutant("inference/sampling/modes/weigh.py", ">= LONG)", ">= 1)"),
    Mutant("inference/sampling/modes/confined.py", "allowance.left -= allowance.of_moves",
           "allowance.of_moves"),
    Mutant("estimators/mcmc/sampling.py", "thinning=sampler.thinning", "thinning=1",
           "estimators/mcmc/test_estimator.py"),
    Mutant("inference/laplace_starts.py", "[1].count(1) <=", "[1].count(1) >="),
    Mutant("estimators/mcmc/mcmc.py", '{"counts", "heteroscedastic"}', '{"counts"}',
           "estimators/test_likelihoods.py"),
    Mutant("estimators/draws.py", "return self.noise_std.scale if", "return 1.0 if",
           "estimators/mcmc/test_evidence.py"),
    Mutant("estimators/laplace/online.py", "if self._starts_narrow(model.likelihood):", "if False:",
           "estimators/test_defaults.py"),
    Mutant("inference/laplace/search/mode_search.py", "problem = self.problem.of(which)\n",
           "problem, which = self.problem.of(which), 0 * which\n", "estimators/test_processes.py"),
    Mutant("estimators/laplace/lila.py", 'GivenPrior = "learn"', "GivenPrior = 3.0",
           "estimators/test_defaults.py"),
]  # fmt: skip


def tests_of(mutant: Mutant) -> str:
    folder, _, name = mutant.module.rpartition("/")
    return mutant.tests or f"{folder}/test_{name.lstrip('_')}"


def mutated(mutant: Mutant) -> tuple[Path, str, str]:
    path = Path("skbayes_sym") / mutant.module
    text = (ROOT / path).read_text(encoding="utf-8")
    if text.count(mutant.before) != 1:
        raise ValueError(
            f"{path} has {mutant.before!r} {text.count(mutant.before)} times, not once"
        )
    return path, text, text.replace(mutant.before, mutant.after)


def _passes(folder: Path, tests: str) -> bool:
    """Whether the tests pass on the copy, in a process of their own."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = _run(folder, tests)
        finally:
            os._exit(code)  # nothing of the parent's is cleaned up here
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def _run(folder: Path, tests: str) -> int:
    """In the child: silent, without the tree that this file is in."""
    import pytest

    resource.setrlimit(resource.RLIMIT_CPU, (_CPU_SECONDS, _CPU_SECONDS))
    os.chdir(folder)
    sys.path[:] = [str(folder), *(p for p in sys.path if not p.startswith(str(ROOT)))]
    with open(os.devnull, "w") as null:
        os.dup2(null.fileno(), 1)
        os.dup2(null.fileno(), 2)
    files = [f"tests/{name}" for name in tests.split()]
    options = ["-x", "-q", "-p", "no:cacheprovider", "--no-header", "-m", "not slow"]
    return int(pytest.main([*options, *files]))


def _preload() -> None:
    """What every test imports, and no mutant changes."""
    import pytest  # noqa: F401
    import scipy.stats  # noqa: F401
    import sklearn.model_selection  # noqa: F401
    import torch

    torch.set_num_threads(1)


def main(first: int, last: int, *, trusting: bool) -> int:
    """Plant those from ``first`` on; the number that nobody saw."""
    _preload()
    survived: list[int] = []
    healthy: dict[str, bool] = {}
    chosen = list(enumerate(MUTANTS))[first:last]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part in ("skbayes_sym", "tests", "examples"):
            shutil.copytree(
                ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__")
            )
        shutil.copy(ROOT / "pyproject.toml", folder)
        os.environ["PYTHONPATH"], sys.dont_write_bytecode = name, True
        for number, mutant in chosen:
            path, text, changed = mutated(mutant)
            tests = tests_of(mutant)
            if tests not in healthy:
                healthy[tests] = trusting or _passes(folder, tests)
            (folder / path).write_text(changed, encoding="utf-8")
            seen = healthy[tests] and not _passes(folder, tests)
            (folder / path).write_text(text, encoding="utf-8")
            word = "caught" if seen else "SURVIVED"
            word = word if healthy[tests] else "tests fail without it"
            survived += [] if seen else [number]
            print(f"{number:3d} {word}: {mutant.module}: {mutant.after}", flush=True)
    print(f"{len(chosen) - len(survived)} of {len(chosen)} caught; not: {survived}")
    return len(survived)


if __name__ == "__main__":
    if sys.argv[1:] == ["check"]:
        for one in MUTANTS:
            mutated(one)
        print(f"{len(MUTANTS)} mutants")
    else:
        span = [int(a) for a in sys.argv[1:] if a != "fast"] or [0, len(MUTANTS)]
        sys.exit(main(*span, trusting="fast" in sys.argv) > 0)
