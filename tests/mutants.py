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


def planted(module: str, tests: str, *texts: tuple[str, str]) -> list[Mutant]:
    """Bugs of one module that the same tests must see: what is there, and what comes instead."""
    return [Mutant(module, before, after, tests) for before, after in texts]


MUTANTS = [
    *planted(
        "stacking/tree_walk.py",
        "stacking/test_tree_walk.py",
        ("> self._threshold[node]", ">= self._threshold[node]"),
        ("np.add.accumulate(values, axis=1)[:, -1]", "values.sum(1)"),
        ("            self._depth += 1", "            self._depth = 1"),
    ),
    *planted(
        "numerics/runtime.py",
        "numerics/test_runtime.py",
        ("    finally:\n        is_closed.set()", "    finally:\n        pass"),
        ("        n_jobs = joblib.effective_n_jobs(n_jobs)\n        hints", "        hints"),
    ),
    Mutant(
        "laplace/gauss_newton_regression.py",
        "for step in range(1, n_steps + 1)",
        "for step in range(1)",
        "base/test_processes.py",
    ),
    Mutant(
        "stacking/fit.py",
        "zip_longest(others, exclusive)",
        "zip_longest(exclusive, others)",
        "stacking/test_estimators.py",
    ),
    Mutant(
        "base/messages.py",
        "                if warning not in shown:",
        "                if True:",
        "base/test_extrapolation.py",
    ),
    Mutant(
        "base/coded_numbers.py",
        "            is_far = np.abs(others - code).min() > np.ptp(others)",
        "            is_far = True",
        "base/test_coded_numbers.py",
    ),
    Mutant(
        "base/coded_numbers.py",
        "(month >= 1) & (month <= 12)",
        "(month >= 0) & (month <= 99)",
        "base/test_coded_numbers.py",
    ),
    Mutant(
        "base/target_columns.py",
        "    return varies and bool(np.all(column == target))",
        "    return bool(np.all(column == target))",
        "base/test_target_columns.py",
    ),
    Mutant(
        "base/scikit_learn.py",
        ' or "now missing" in message:',
        ":",
        "base/test_target_columns.py",
    ),
    Mutant(
        "student.py",
        "(0.5 * (1.0 - coverage), 0.5 * (1.0 + coverage))",
        "(1.0 - coverage, coverage)",
        "test_distillation.py",
    ),
    Mutant(
        "model_selection/_compare.py",
        "    if not folds or any(fold.log_density is not None for fold in folds):",
        "    if not folds:",
        "model_selection/test_compare.py",
    ),
    Mutant(
        "base/weighted_draws.py",
        'dims[f"W{i}"] = [axes[i], axes[i - 1]]',
        'dims[f"W{i}"] = [axes[i - 1], axes[i]]',
        "base/test_draws.py",
    ),
    Mutant(
        "stacking/scoring.py",
        "        with collect_warnings():\n            if fit.is_calibrated and task.n_classes:",
        "        if True:\n            if fit.is_calibrated and task.n_classes:",
        "stacking/test_groups.py",
    ),
    Mutant(
        "numerics/dates.py",
        "np.rint(days * _MICROSECONDS_PER_DAY) / _MICROSECONDS_PER_DAY",
        "days",
        "base/test_dates.py",
    ),
    Mutant(
        "base/target_transformation.py",
        "    if n_parts > 1:",
        "    if False:",
        "base/test_closed_forms.py",
    ),
    Mutant(
        "base/closed_forms.py",
        "_TAIL_RULE = np.polynomial.legendre.leggauss(32)",
        "_TAIL_RULE = np.polynomial.legendre.leggauss(8)",
        "base/test_closed_forms.py",
    ),
    *planted(
        "base/input_validation.py",
        "base/test_bad_input.py",
        ('X.dtype.kind in "mM"', 'X.dtype.kind in "M"'),
        ('startswith(("timedelta", "duration"))', 'startswith(("nothing", "duration"))'),
        ("    if is_clock_time(text):", "    if False:"),
        ("    if is_formatted_number(text):", "    if False:"),
    ),
    *planted(
        "models/networks/modules.py",
        "models/networks/test_modules.py",
        ("if layers.setdefault(id(value), layer) is not layer:", "if False:"),
        ("named_parameters(remove_duplicate=False)", "named_parameters()"),
    ),
    *planted(
        "stacking/base.py",
        "stacking/test_groups.py",
        ("require_known_classes(folds, targets)", "pass"),
    ),
    *planted(
        "base/predictive.py",
        "base/test_distributions.py",
        ("        distribution.row_labels = row_labels(X)\n        return", "        return"),
    ),
    *planted(
        "base/columns.py",
        "base/test_messy_tables.py",
        ("varies=len(encoded) == 1", "varies=True"),
        ("differs.mean(axis=0) >= _MIN_VARYING", "differs.any(axis=0)"),
        ("> _MAX_ROUNDING * size", "> 0.0 * size"),
        ('if column.kind != "categorical" and start not in kept:', "if False:"),
    ),
    Mutant(
        "base/columns.py",
        "limit = max(_FAR_FACTOR * (high - low), _FAR_DAYS)",
        "limit = np.inf",
        "base/test_dates.py",
    ),
    Mutant(
        "stacking/predictors.py",
        "complete[:, self.estimator.classes_.astype(int)] = values",
        "complete[:, : values.shape[1]] = values",
        "stacking/test_groups.py",
    ),
    *planted(
        "numerics/arguments.py",
        "test_wrong_arguments.py",
        ("if values is None or not all(is_int):", "if values is None:"),
        ("except (TypeError, ValueError, OverflowError):", "except (TypeError, ValueError):"),
    ),
    *planted(
        "models/augmentations/tabular.py",
        "test_wrong_arguments.py",
        ('object.__setattr__(self, "columns", _as_tuple("ColumnShift", self.columns))', "pass"),
    ),
    *planted(
        "inspection/class_calibration.py",
        "inspection/test_scores.py",
        (
            "return isinstance(label, str | bytes | Real | Decimal | date | np.generic) and ",
            "return ",
        ),
        ("happened = observed == positions[0]", "happened = observed != positions[0]"),
        ("        warn_reordered_rows(X, y=y)\n", ""),
    ),
    Mutant(
        "base/classifier.py",
        "if is_known.size > 1 and not is_known.any():",
        "if False:",
        "inspection/test_scores.py",
    ),
    Mutant(
        "model_selection/_scorers.py",
        "        warn_reordered_rows(X, y=y_true, **routed)\n",
        "",
        "inspection/test_scores.py",
    ),
    *planted(
        "base/training.py",
        "base/test_extremes.py",
        ("if magnitude[column] > LARGEST_TARGET or not is_representable:", "if False:"),
        ("magnitude[column] > LARGEST_TARGET or not", "not"),
        ("largest = min(largest, _MAX_WEIGHT)", "pass"),
    ),
    *planted(
        "base/row_parameters.py",
        "base/test_extremes.py",
        ("(values < 1.0 / _MAX_EXPOSURE) |", ""),
        ("values > _MAX_ERROR, limit", "values < 0.0, limit"),
    ),
    *planted(
        "base/targets.py",
        "base/test_bad_targets.py",
        ("if is_formatted or 2 * len(refused)", "if 2 * len(refused)"),
        ("elif isinstance(y, Set):", "elif False:"),
    ),
    Mutant(
        "base/distributions.py",
        "if is_frame(y) and values.shape == (*shape, 1):",
        "if False:",
        "base/test_bad_targets.py",
    ),
    Mutant(
        "model_selection/_compare.py",
        "refuse_missing_labels(label_array(y).ravel())",
        "pass",
        "base/test_bad_targets.py",
    ),
    Mutant(
        "inspection/comparison.py",
        'if np.nan_to_num(columns["fit_seconds"]).any():',
        "if True:",
        "inspection/test_scores.py",
    ),
    Mutant(
        "ensemble/estimators.py",
        "learns_noise = self._has_default_noise or is_normal",
        "learns_noise = self._has_default_noise",
        "ensemble/test_estimators.py",
    ),
    *planted(
        "base/classifier.py",
        "base/test_bad_targets.py",
        ('if labels.dtype.kind in "biu":', "if False:"),
        ('if isinstance(labels, list | tuple) and array.dtype.kind in "US":', "if False:"),
    ),
    *planted(
        "base/columns.py",
        "base/test_columns.py",
        ("(numbers != 0.0) & (numbers != 1.0)", "(numbers != 0.0) & (numbers > 9e9)"),
        ("is_known |= values == column.median", "pass"),
        ("spelling.setdefault(plain_spelling(level), level)", "spelling.setdefault(level, level)"),
    ),
    *planted(
        "base/training_columns.py",
        "base/test_columns.py",
        ("np.flatnonzero(is_boolean & ~self.is_binary)", "np.flatnonzero(is_boolean & False)"),
    ),
    *planted(
        "numerics/tables.py",
        "base/test_bad_targets.py",
        ("or index.equals(other) or not (", "or not ("),
        ("return bool(index.isin(other).all())", "return False"),
    ),
    *planted(
        "base/noise_shape.py",
        "base/test_stacking_weights.py",
        ("spread).asinh()\n    problem", "spread)\n    problem"),
        ("scale = 0.5 * (high - low)", "scale = 0.0 * (high - low)"),
        ("weight[order].cumsum(0) / total", "torch.ones_like(mean).cumsum(0) / len(mean)"),
    ),
    *planted(
        "inspection/predictive.py",
        "inspection/test_predictive.py",
        ("levels.sort(key=dtype.categories.tolist().index)", "pass"),
        ("upper - lower, 0.5, lower, **", "upper, 0.5, lower, **"),
    ),
    *planted(
        "models/likelihoods/likelihood.py",
        "test_wrong_arguments.py",
        ("if value.shape not in {(length,)", "if value.shape[-1:] not in {(length,)"),
        ("if value.requires_grad or not is_finite", "if not is_finite"),
    ),
    Mutant(
        "linear/estimators.py",
        "isinstance(self.noise_std, str) and self.resolved_likelihood.n_params > 0",
        "isinstance(self.noise_std, str)",
        "linear/test_estimators.py",
    ),
    *planted(
        "models/copula.py",
        "models/test_copula.py",
        ("(1.0 - shrinkage) * correlation, 1.0)", "correlation, 1.0)"),
        ("rank = tied_weight.cumsum() - tied_weight +", "rank = tied_weight.cumsum() - 1.0 +"),
        ("- scores.square().sum(1)", "- 0.0 * scores.sum(1)"),
        ("-root.diagonal().log().sum()", "root.diagonal().log().sum()"),
        ("coupled = scores @ self._root.to(scores.device).T", "coupled = scores"),
        ("0.5 * (below + distribution.cdf(y - unit))", "below"),
    ),
    *planted(
        "base/gross_errors.py",
        "base/test_gross_errors.py",
        ("* np.arange(k, k + m + 1)", "* np.arange(1, m + 2)"),
        ("if not is_candidate[order[k - 1]]:", "if False:"),
        ("> MAX_EXPLAINED", "> 2.0"),
        ("levels = add_absent_levels(X)", "levels = X"),
        (
            "low, median, high = 0.5 * np.quantile(y,",
            "low, median, high = 0.5 * np.quantile(y[y != 0],",
        ),
    ),
    *planted(
        "base/columns.py",
        "base/test_columns.py",
        (">= _MIN_SINGLE and not is_ordered", ">= _MIN_SINGLE"),
        ("& (not column.has_other)) | is_newly", ") | is_newly"),
        ("bisect_left(levels, level_key(values[row])) - 0.5", "0.5"),
        ("parts.append((~is_one_hot & ~is_missing)", "parts.append((is_one_hot & ~is_missing)"),
        ("if column.has_other and not hint:", "if False:"),
    ),
    *planted(
        "models/log_targets.py",
        "stacking/test_log_targets.py",
        ("- (z[:, 0] + np.log(self.scale))", "- np.log(self.scale)"),
        ("torch.special.log_ndtr(distance - power * std)", "torch.special.log_ndtr(distance)"),
    ),
    *planted(
        "laplace/initialization.py",
        "stacking/test_estimators.py",
        (
            "replace(problem, weight_factor=is_training.to(mode.theta))",
            "replace(problem, weight_factor=torch.ones_like(is_training).to(mode.theta))",
        ),
    ),
    *planted(
        "stacking/scoring.py",
        "stacking/test_log_targets.py",
        ("scored.log_density + log_jacobian", "scored.log_density"),
    ),
    *planted(
        "stacking/fit.py",
        "stacking/test_log_targets.py",
        ("return self.scored if is_gain else plain", "return self.scored"),
        (
            "others = self._useful_members()",
            "others = {n: m for n, m in self.scored.items() if not n.startswith('log')}",
        ),
    ),
    *planted(
        "laplace/balancing.py",
        "laplace/test_balancing.py",
        ("log_scale = 0.25 * (", "log_scale = 0.5 * ("),
        ("incoming_norm += bias_precision * bias.square()", "pass"),
        ("can_balance = np.logical_and(", "can_balance = np.logical_or("),
        ("return theta * torch.as_tensor(", "return theta / torch.as_tensor("),
        ("curvature, 1.0)[:, None] ** -0.5", "curvature, 1.0)[:, None] ** 0.0"),
    ),
    *planted(
        "laplace/invariant_evidence.py",
        "laplace/test_balancing.py",
        (
            "TrainingState(balance_weights(self.model.network, theta, precision), hyper)",
            "state",
        ),
        ("rest = self.precisions[:1]", "rest = 4.0 * self.precisions[:1]"),
    ),
    *planted(
        "ensemble/fit.py",
        "laplace/test_balancing.py",
        ("return torch.cat([balanced.to(position), position[:, n_params:]], 1)", "return position"),
        ("scale = objective.prior.scale", "pass"),
    ),
    *planted(
        "symmetry/modules/module_exchange.py",
        "symmetry/modules/test_module_exchange.py",
        ("self._layout, inputs, perturb)", "self._layout, inputs)"),
        (
            "if not all(self._changes_outputs(child, points) for child in siblings.names):",
            "if False:",
        ),
        ("entries = [*base, *_entries_of_blocks(others, blocks)]", "entries = base"),
    ),
    *planted(
        "laplace/mode_finding.py",
        "laplace/test_balancing.py",
        ("theta = balance_weights(problem.network, theta, precision)", "pass"),
    ),
    *planted(
        "models/positive_targets.py",
        "stacking/test_positive_targets.py",
        ("np.log1p(-self.max_mass) - self._log_mass_above", "-self._log_mass_above"),
        ("(uniform >= self.factor_below)", "(uniform >= 0.0)"),
        ("below = base_mean - above", "below = base_mean"),
        ("if total_weight < _MIN_ROWS:", "if False:"),
    ),
    *planted(
        "base/quadrature.py",
        "base/test_closed_forms.py",
        ("side * (mean[block] - targets)", "(mean[block] - targets)"),
        ("(2.0 * below - 1.0).clip(0.0, 1.0)", "below"),
    ),
    *planted(
        "base/panels.py",
        "base/test_closed_forms.py",
        ("distance * 0.5 ** np.arange", "distance * 0.01 ** np.arange"),
        ("self.unit / scale", "scale / scale"),
    ),
    *planted(
        "base/transformed_normals.py",
        "base/test_closed_forms.py",
        ("is_known &= tail.reshape(shape) <= _MAX_TAIL * size", "pass"),
        ("_POLE_REACH + 0.5 + 0.2", "0.0 * _POLE_REACH + 0.2"),
        ("self._is_near(transformations.singular_points, _REACH)\n", "False\n"),
        ("reach = np.where(size < _POLE_REACH, np.maximum(size - 0.5, 0.0), reach)", "pass"),
    ),
    *planted(
        "base/training.py",
        "base/test_gross_errors.py",
        ("rows, inverse_index = drop_rows(rows, inverse_index, is_gross)", "pass"),
    ),
    *planted(
        "stacking/scoring.py",
        "stacking/test_members.py",
        ("density.numpy() - fit.optimism", "density.numpy() + fit.optimism"),
    ),
    *planted(
        "stacking/fit.py",
        "stacking/test_members.py",
        ("stacking_weights(density, weight, prior", "stacking_weights(density, weight**0, prior"),
    ),
    *planted(
        "stacking/fit.py",
        "stacking/test_estimators.py",
        ("train = index[part != k]", "train = index"),
    ),
    *planted(
        "stacking/predictors.py",
        "stacking/test_members.py",
        ("tree.impurity + table[:, 0] ** 2", "table[:, 0] ** 2"),
        ("total[np.argsort(order)]", "total[order]"),
        ("torch.cat([torch.zeros_like(scores), scores]", "torch.cat([-scores, scores]"),
    ),
    *planted(
        "stacking/members/trees.py",
        "stacking/test_members.py",
        ("np.stack(n_draws, 1) == 0", "np.stack(n_draws, 1) >= 0"),
    ),
    *planted(
        "stacking/tree_arrays.py",
        "stacking/test_members.py",
        ("np.where(rounded > values, np.next", "np.where(rounded < values, np.next"),
        ("node_impurity[~is_split] = impurity", "node_impurity[~is_split] = 1.0"),
    ),
    *planted(
        "stacking/tree_arrays.py",
        "saving/test_forged.py",
        ("(splits >= self.n_trees + 2 * np.arange(len(splits))).any()", "False"),
    ),
    Mutant(
        "base/calibration.py",
        "bincount(y, weight, minlength=n_classes).to(scores)",
        "bincount(y, minlength=n_classes).to(scores)",
        "stacking/test_members.py",
    ),
    *planted(
        "numerics/tables.py",
        "base/test_columns.py",
        ("        if number.is_integer():", "        if number == 0.5:"),
        ("UNKNOWN if is_ambiguous else code", "code"),
        ("    if is_declared:\n", "    if is_declared and len(values) < 2:\n"),
    ),
    *planted(
        "base/columns.py",
        "base/test_columns.py",
        ("[1.0] * len(x.blocks))", "[1.0, *[1e-9] * (len(x.blocks) - 1)])"),
    ),
    *planted(
        "base/extrapolation.py",
        "base/test_extrapolation.py",
        ("distance * (1.0 + distance)) @ rates", "distance) @ rates * 0.0"),
        ("drift[late] = horizon[late] * rise", "drift[late] = 0.5 * horizon[late] * rise"),
        ("((lag - lags[0]) * (1.0 - lag))", "(lag * (1.0 - lag))"),
    ),
    *planted(
        "numerics/dates.py",
        "base/test_dates.py",
        ("days + shift)", "days - shift)"),
        ("(np.floor(days) + 3.0) % 7.0", "(np.floor(days) + 4.0) % 7.0"),
    ),
    *planted("numerics/tables.py", "base/test_masks.py", (".filled(np.nan)", ".data")),
    *planted(
        "numerics/gaussian.py",
        "",
        ("squares - 1.0 - log_ratio)", "squares - 1.0 + log_ratio)"),
        ("0.5 * (trace + squares - n - log_det)", "0.5 * (trace + squares - n + log_det)"),
        ("(squares + log_det + n * LOG_2PI)", "(squares + log_det + LOG_2PI)"),
        ("+ LOG_2PI) - log_scale", "+ LOG_2PI) + log_scale"),
        ("weights / weights.sum()", "weights / weights.max()"),
    ),
    *planted(
        "numerics/random.py",
        "",
        ("/ len(values) ** 0.5)", "/ len(values))"),
        ("-1.0, 1.0).to(q)", "1.0, 1.0).to(q)"),
    ),
    *planted(
        "numerics/optimise.py",
        "numerics/test_convergence.py",
        ("np.mean(last) - np.mean(before)", "np.mean(before) - np.mean(last)"),
        ("tol + 3.0 * self.standard_error", "tol - 3.0 * self.standard_error"),
    ),
    *planted(
        "numerics/linalg.py",
        "",
        (
            "2.0 * factor.diagonal(dim1=-2, dim2=-1).log()",
            "factor.diagonal(dim1=-2, dim2=-1).log()",
        ),
    ),
    *planted(
        "numerics/permanent.py",
        "",
        ("total.log().add_(peak)", "total.log().sub_(peak)"),
        (
            "torch.xlogy(rest, rest) - torch.xlogy(plan, plan)",
            "-torch.xlogy(rest, rest) - torch.xlogy(plan, plan)",
        ),
        ("torch.minimum(bounds[:2]", "torch.maximum(bounds[:2]"),
    ),
    *planted(
        "stacking/base.py",
        "stacking/test_estimators.py",
        ("if name in weighted or name not in known", "if name in weighted"),
    ),
    *planted(
        "saving/checks.py",
        "saving/test_forged.py",
        ("array.min() >= 0 and array.max() < n", "array.max() < n"),
        ("array.ndim != len(axes)", "array.ndim < len(axes)"),
    ),
    *planted(
        "saving/files.py",
        "saving/test_forged.py",
        ("needed > _SPARE_BYTES + n_bytes", "needed > 2**40"),
    ),
    *planted(
        "symmetry/relabelling.py",
        "inspection/test_symmetry.py",
        ("g = group.compose(h, g)", "g = group.compose(g, h)"),
    ),
    *planted(
        "symmetry/gaps/unit_gap.py",
        "",
        (
            "logsumexp(dim=0) - log(self.n_permutations)",
            "logsumexp(dim=0) - log(self.n_permutations - 1)",
        ),
        ("+ lgamma(d + 1) - log(n)", "+ lgamma(d) - log(n)"),
        ("return (terms - log_tau).logsumexp", "return (terms + log_tau).logsumexp"),
        ("noise * noise).sum(-1) + log_scale", "noise * noise).sum(-1) - log_scale"),
        (".sum(-1) + 2.0 * log_scale", ".sum(-1) + log_scale"),
    ),
    *planted(
        "symmetry/gaps/unit_gap.py",
        "symmetry/gaps/test_laws.py",
        ("d_loc, -d_scale / scale.detach()", "d_loc, d_scale / scale.detach()"),
    ),
    Mutant("symmetry/gaps/unit_gap.py", "layer.log_order - permanent(ratios", "-permanent(ratios"),
    *planted(
        "linear/predict.py",
        "linear/test_habits.py",
        ("self.variance_scale**0.5 * (weights - loc)", "(weights - loc)"),
    ),
    *planted(
        "metrics.py",
        "test_metrics.py",
        (
            "np.ceil(confidence * n_bins).astype(int) - 1,",
            "np.floor(confidence * n_bins).astype(int),",
        ),
    ),
    *planted(
        "models/priors.py",
        "models/test_learned_scales.py",
        ("rng.gamma(s.shape, 1.0 / rate,", "rng.gamma(s.shape, rate,"),
    ),
    *planted(
        "factorization/recommend.py",
        "factorization/test_ratings.py::test_similar_columns_have_what_rows_like_in_common",
        ("np.quantile(cosines, [0.05, 0.95]", "np.quantile(cosines, [0.25, 0.75]"),
    ),
    *planted(
        "symmetry/gaps/monte_carlo_gap.py",
        "",
        ("log_order - tree.log_sum(part", "tree.log_sum(part"),
        ("torch.where(rank < n_heavy, coin, within)", "within"),
        ("peak - rate.log()", "peak"),
        ("return Selection(index, values - lookahead", "return Selection(index, values"),
        ("signs - 0.5 * square.unsq", "signs - square.unsq"),
        ("log_terms.softmax(0) * spread / n.sqrt()", "log_terms.softmax(0) * spread / n"),
        ("dtype=torch.float64) + means", "dtype=torch.float64) - means"),
    ),
    *planted(
        "stacking/members/networks.py",
        "stacking/test_estimators.py",
        ("collect_warnings(), fit_deadline(task.deadline),", "collect_warnings(),"),
    ),
    *planted(
        "base/progress.py",
        "base/test_run.py",
        ("_deadline.set(min(seconds, _deadline.get()))", "_deadline.set(seconds)"),
        ("monotonic() > _deadline.get()", "False"),
    ),
    *planted(
        "base/progress.py",
        "base/test_callbacks.py",
        ("self._outer_receiver = current_receiver()", "self._outer_receiver = None"),
        ("while not self.is_stopped and self._n_reported + 1 <= n_done:", "while False:"),
    ),
    *planted(
        "numerics/progress.py",
        "",
        ("outer(start + (stop - start) * fraction)", "outer(start + fraction)"),
        ("        yield\n    outer(stop)", "        yield"),
        ("receiver(min(n_done / n_total, 1.0))", "receiver(n_done / n_total)"),
    ),
    *planted(
        "numerics/runtime.py",
        "numerics/test_progress.py",
        (
            "        with reporting_to(lambda _fraction: is_closed.is_set()):\n            payload",
            "        if True:\n            payload",
        ),
        ("            report_progress(i + 1, len(jobs))\n", ""),
    ),
    *planted(
        "base/messages.py",
        "base/test_host_state.py",
        ("logging.INFO if _verbose.get() else logging.DEBUG", "logging.INFO"),
    ),
    *planted(
        "base/messages.py",
        "base/test_host_state.py",
        ("        _collected.reset(token)", "        pass"),
    ),
    *planted(
        "numerics/arguments.py",
        "base/test_host_state.py",
        ("np.random.RandomState(np.random.MT19937())", "np.random.mtrand._rand"),
    ),
    *planted(
        "laplace/gauss_newton_regression.py",
        "laplace/test_defaults.py",
        (
            "self._config(problem, has_low_noise=has_low_noise)",
            "self._config(problem)",
        ),
        ("width > middle and chosen == smallest", "False"),
        ("<= defaults.max_unexplained_fraction", ">= defaults.max_unexplained_fraction"),
        ("search = final.resume(problem", "search = final.resume(subsample"),
    ),
    *planted(
        "symmetry/gaps/unit_tables.py",
        "symmetry/gaps/test_laws.py",
        ("torch.where(stays, odd - plain, even + odd)", "torch.where(stays, odd, even + odd)"),
        (
            "inner = _signs(table.outer, choice, sign)",
            "inner = sign.new_ones(table.outer.shape[1])",
        ),
    ),
    *planted(
        "variational/elbo.py",
        "variational/test_modules.py",
        ("* noise).sum(1), -sd", "* noise).sum(1), -2.0 * sd"),
    ),
    *planted(
        "variational/elbo.py",
        "",
        ("terms.sub_(self._log_variance)", "terms.add_(self._log_variance)"),
        ("log_scale - 0.5 * n_params", "log_scale"),
        ("_order - float(values.min())", "_order"),
        ("or step % self._hold == 0", "or False"),
        ("sub_(held * weight)", "sub_(held)"),
        ("addcmul_(scaled_loc, self._penalty_weight)", "add_(scaled_loc)"),
        ("self._next_check = step + self._period", "self._next_check = step"),
    ),
    *planted(
        "symmetry/gaps/row_gaps.py",
        "symmetry/gaps/test_rows.py",
        ("log(2.0) - F.softplus(-2.0 * log_ratio)", "log(2.0) - F.softplus(-log_ratio)"),
        ("return a + a.sqrt() * z", "return a - a.sqrt() * a"),
    ),
    *planted(
        "symmetry/gaps/translations.py",
        "",
        (
            "0.5 * (logs - posterior.log_det_precision())",
            "0.5 * (logs + posterior.log_det_precision())",
        ),
    ),
    *planted(
        "symmetry/gaps/haar_integral.py",
        "",
        ("s + F.softplus(-2.0 * s) - log(2.0)", "s + F.softplus(-2.0 * s)"),
        ("r.sum(-1) - 0.5 * pairs - 0.5 * x", "r.sum(-1) + 0.5 * pairs - 0.5 * x"),
        ("_rotations_3(a, b, -c))", "_rotations_3(a, b, c))"),
    ),
    # Rules of operations: each makes a false symmetry somewhere.
    *(
        Mutant(
            f"symmetry/modules/{module}.py",
            before,
            after,
            "symmetry/modules/test_module_symmetry.py",
        )
        for module, before, after in [
            ("rules", '"relu leaky_relu": (None, 1)', '"relu leaky_relu": (1, 1)'),
            ("rules", "analysis.fix(w, range(2, len(w)))", "analysis.fix(w, range(3, len(w)))"),
            ("rules", "analysis.fix(w, [0])", "analysis.fix(w, [])"),
            (
                "rules",
                "    analysis.mix_positions(x, [dim])\n",
                "    analysis.mix_positions(x, [])\n",
            ),
            ("rules", "[a, b], (SAME, SAME))", "[a, b], (SUM, SUM))"),
            (
                "graph_analysis",
                "add_exponents(f.exponents[kind], g.exponents[kind])",
                "f.exponents[kind]",
            ),
            (
                "graph_analysis",
                "[partition.resolve(axis) for axis in others], summed)",
                "[partition.resolve(axis) for axis in others], set())",
            ),
            (
                "graph_analysis",
                "allowed if controllers is None else controllers & allowed",
                "allowed if controllers is None else controllers",
            ),
            (
                "axis_partition",
                "self._controllers[block] = set(allowed) if before is None else before & allowed",
                "self._controllers[block] = set(allowed) if before is None else before",
            ),
            (
                "group_assembly",
                "if kind == SCALE or global_span.add(",
                "if True or global_span.add(",
            ),
            ("group_assembly", "if not span.add(self._encode_sign(block, solution)):", "if False:"),
        ]
    ),
    # What a module's group leaves alone, and what groups are given.
    *planted(
        "symmetry/modules/module_symmetry.py",
        "symmetry/modules/test_constants.py",
        ("if p.requires_grad}\n    if buffers", "}\n    if buffers"),
        ("        hints=hints,", "        hints=(),"),
    ),
    *planted(
        "symmetry/modules/numerical_check.py",
        "symmetry/modules/test_constants.py",
        ("point = torch.where(is_real, point, theta)", "pass"),
    ),
    *planted(
        "symmetry/modules/numerical_check.py",
        "symmetry/modules/test_module_symmetry.py",
        ("if not bool(before.isfinite().all() and after.isfinite().all()):", "if False:"),
        ("    if largest is None:\n        raise", "    if False:\n        raise"),
    ),
    *planted(
        "symmetry/modules/graph_analysis.py",
        "symmetry/modules/test_module_symmetry.py",
        ("            self.refused.add(name)\n            for", "            for"),
        ("if not is_uniform and name not in _CONSTANTS:", "if False:"),
        ("    if target.namespace in (", "    if True or target.namespace in ("),
    ),
    *planted(
        "symmetry/modules/rules.py",
        "symmetry/modules/test_constants.py",
        ("if len(axis) > 1 and _is_single_segment(", "if False and _is_single_segment("),
        ("if max(sizes) > 1:", "if False:"),
    ),
    *planted(
        "symmetry/modules/rules.py",
        "symmetry/modules/test_rules.py",
        ("is_odd = low is not None and high is not None and low == -high", "is_odd = True"),
        (
            "selected = analysis.combine(n_axes, nonzero, (SAME, SAME))",
            "selected = analysis.combine(n_axes, nonzero, (SUM, SUM))",
        ),
    ),
    *planted(
        "symmetry/modules/axis_partition.py",
        "symmetry/modules/test_rules.py",
        ("self._controllers[block] = None", "pass"),
        ("if has_signs and self._has_parameters(axis):", "if False:"),
        ("self.restrict_controllers(block, unique - hidden)", "pass"),
    ),
    *planted(
        "symmetry/modules/group_assembly.py",
        "symmetry/modules/test_rules.py",
        ("return not is_fixed and b in self.controllers[a]", "return b in self.controllers[a]"),
        ("if {a, b} <= blocks:", "if False:"),
        ("and (2, 2) in counts and", "and False and"),
        (" and counts <= {(0, 0), (1, 1), (2, 2)}", ""),
        ("strided = [part for axis in axes for part in axis.strided()]", "strided = axes"),
    ),
    *planted(
        "symmetry/modules/axis_partition.py",
        "symmetry/modules/test_module_symmetry.py",
        ("if self.families[self.find(family)] is None", "if False"),
    ),
    *planted(
        "symmetry/modules/selection_rules.py",
        "symmetry/modules/test_rules.py",
        ("if _is_used(node, 1):", "if False:"),
        (
            "return reduce(analysis, x, [dim], keepdim, (n, n))",
            "return reduce(analysis, x, [dim], keepdim, (1, n))",
        ),
        (
            "places = reduce(analysis, x, list(dims), keepdim, (None, None))",
            "places = reduce(analysis, x, list(dims), keepdim, (1, 1))",
        ),
        ("analysis.require_trivial([*a[:-1], *b[:-1]])", "pass"),
    ),
    *planted(
        "symmetry/modules/overall_signs.py",
        "symmetry/modules/test_rules.py",
        ("self._require_plus(node.all_input_nodes)", "pass"),
        ("        self._require_plus(inputs)\n        return {}", "        return {}"),
    ),
    *planted(
        "symmetry/modules/merging.py",
        "symmetry/modules/test_constants.py",
        (
            "parameter.requires_grad_(not (is_frozen and is_equal))",
            "parameter.requires_grad_(True)",
        ),
    ),
    *planted(
        "symmetry/group.py",
        "symmetry/test_checks.py",
        ("if length < self.n_params or (", "if False or ("),
        ("(is_exact and length > self.n_params)", "False"),
        ("if theta.dtype != reference.dtype:", "if False:"),
    ),
    *planted(
        "models/networks/modules.py",
        "base/test_frozen.py",
        ("self.layout.unflatten(theta) | self._constants(theta)", "self.layout.unflatten(theta)"),
        ("layer.bias is not None and layer.bias.requires_grad", "layer.bias is not None"),
    ),
    *planted(
        "numerics/runtime.py",
        "",
        ("                _release_large_tables()", "                pass"),
        ("if _USERS.n or _n_bytes(result) <= _SMALL_TABLE:", "if True:"),
        ("while len(tables) >= _MAX_TABLES:", "while False:"),
    ),
    *planted(
        "models/networks/mlp_passes.py",
        "models/networks/test_mlp.py",
        ("torch.where(j == k, 0.5, 1.0)", "torch.where(j == k, 1.0, 1.0)"),
        ("weight_rows[..., n_weights:].copy_", "weight_rows[..., n_weights:].add_"),
        ("moments = (weight * a) @ a.mT", "moments = a @ a.mT"),
    ),
    *planted(
        "symmetry/axis_units.py",
        "symmetry/test_groups.py",
        ("(self._conjugate(k, x, g, batch) for", "(x for"),
        ("part.inverse(self._conjugate(k, g[k], inverse, batch))", "part.inverse(g[k])"),
        (
            "for axis in range(1 + e.is_pair):\n                if",
            "for axis in range(1):\n                if",
        ),
    ),
    *planted(
        "symmetry/axis_units.py",
        "symmetry/modules/test_module_symmetry.py",
        ("if flips[axis]]", "if any(flips)]"),
    ),
    *planted(
        "symmetry/translation.py",
        "",
        ("self.element(reference - theta)", "self.element(theta - reference)"),
    ),
    *planted(
        "models/likelihoods/noise.py",
        "models/likelihoods/test_families.py",
        ("(0.5 * (z * z) + self.log_noise + 0.5", "(0.5 * (z * z) - self.log_noise + 0.5"),
    ),
    *planted(
        "models/likelihoods/noise.py",
        "models/likelihoods/test_expectations.py models/likelihoods/test_base.py",
        ("d_variance = (-0.5 * precision)", "d_variance = (0.5 * precision)"),
    ),
    *planted(
        "models/likelihoods/noise.py",
        "models/likelihoods/test_families.py",
        ("0.5 * (df + 1) * torch.log1p", "0.5 * df * torch.log1p"),
        ("df / (df - 2.0)", "df / (df - 1.0)"),
    ),
    *planted(
        "models/likelihoods/noise.py",
        "models/likelihoods/test_heteroscedastic.py",
        ("+ 2.0 * self.spread**2 * v_second", "- 2.0 * self.spread**2 * v_second"),
        ("2**0.5 * self._slope(log_std)], -1)", "self._slope(log_std)], -1)"),
    ),
    *planted(
        "models/likelihoods/likelihood.py",
        "test_extension.py",
        ('cls.kind = "other"', "pass"),
        ('@derived_from("log_prob")\n    def data_term', "def data_term"),
    ),
    *planted(
        "models/likelihoods/counts.py",
        "models/likelihoods/test_expectations.py models/likelihoods/test_base.py",
        ("rate = (mean + 0.5 * variance).exp()", "rate = (mean + variance).exp()"),
        ("return size * log_one_plus - ", "return -size * log_one_plus - "),
    ),
    *planted(
        "models/likelihoods/counts.py",
        "models/likelihoods/test_families.py",
        ("(y + size) * mean)", "y * mean)"),
    ),
    *planted(
        "models/predictive_mixtures.py",
        "models/test_predictive.py",
        ("(self.loc - self.mean()) ** 2 + self.variance", "(self.loc - self.mean()) ** 2"),
        (
            "self.broadcast_weights * self.noise_variance.expand_as(self.loc)",
            "self.noise_variance.expand_as(self.loc) / len(self.loc)",
        ),
        (
            "log_prob - self._units[1].log()",
            "log_prob + self._units[1].log()",
        ),
        ("return round_near_counts(values)", "return values"),
        (
            "noise_variance=self.noise_variance * scale**2",
            "noise_variance=self.noise_variance * scale",
        ),
        (
            "is_open = last_step > torch.maximum(tolerance, resolution)",
            "is_open = last_step > 1e-3",
        ),
        ("upper = torch.where(is_below, upper, x)", "upper = torch.where(is_below, x, upper)"),
    ),
    *planted(
        "models/predictive_mixtures.py",
        "base/test_extremes.py",
        ("self.log_weights.to(self._like).softmax(0)", "self.log_weights.exp()"),
    ),
    *planted(
        "mcmc/kronecker.py",
        "mcmc/test_kronecker.py",
        ("precision).rsqrt() - prior_scale", "precision).rsqrt()"),
        ("a.lerp(b, 0.6)", "b"),
        ("if i == 0 and len(x) <", "if len(x) <"),
    ),
    *planted(
        "models/crps.py",
        "models/test_crps.py",
        (
            "(1.0 - distribution.cdf(x)).square(), y, high)",
            "distribution.cdf(x).square(), y, high)",
        ),
    ),
    *planted(
        "numerics/integration.py",
        "models/test_crps.py",
        ("left - right).abs()", "left - right).abs() * 0.0"),
        ("roots().real", "roots() + 0j"),
        ("topk(1 + step // 8, dim=0)", "topk(1, dim=0)"),
    ),
    *planted(
        "models/priors.py",
        "models/test_learned_scales.py",
        ("for rate in rates) - self.n_groups", "for rate in rates) + self.n_groups"),
        ("torch.digamma(a + 0.5 * s.sizes", "torch.digamma(a + s.sizes"),
        ("variance /= float(np.prod(size[1:]))", "variance /= 1.0"),
    ),
    Mutant("linear/design.py", "not np.isf", "np.isf", "base/test_extremes.py"),
    *planted(
        "base/regressor.py",
        "base/test_extremes.py",
        ("x.device, torch.float64), scale.to(x.device, torch.float64)", "x), scale.to(x)"),
    ),
    *planted(
        "base/regressor.py",
        "base/test_predictive.py",
        (
            "distribution.uncertainty().epistemic.sqrt()\n",
            "distribution.uncertainty().epistemic\n",
        ),
    ),
    *planted(
        "laplace/class_predictive.py",
        "base/test_predictive.py",
        ("shrinkage) @ q.mT +", "shrinkage) @ q.mT -"),
    ),
    *planted(
        "laplace/predict.py",
        "base/test_predictive.py",
        ("symmetric_root(self.variance_scale * ", "symmetric_root("),
    ),
    *planted(
        "laplace/predict.py",
        "base/test_function_draws.py",
        ("mean + self.variance_scale**0.5 * deviations", "mean + deviations"),
        (
            "predictive(mean.expand(n, *mean.shape))",
            "predictive(self.network.sample_functions(x, n, generator=generator))",
        ),
    ),
    *planted(
        "base/progress.py",
        "base/test_bad_input.py",
        ('Interval(Integral, None, -1, closed="right")', "Integral"),
    ),
    *planted(
        "base/model_factory.py",
        "base/test_refused.py",
        ('np.errstate(over="ignore")', "np.errstate()"),
    ),
    Mutant("model_selection/_scorers.py", "not isinstance(scoring, str) or scoring", "scoring"),
    *planted(
        "factorization/splitters.py",
        "",
        ("np.isin(listed[:length], ", "np.isin(listed, "),
        ("np.arange(2, max_hits + 2)", "np.arange(2, n + 2)"),
        ("np.cumsum(hits) / rank", "np.cumsum(hits) / n"),
        ("and not isinstance(argument, Mapping)", "and False"),
        ("index[fold < i]", "index[fold != i]"),
    ),
    Mutant(
        "stacking/base.py",
        '"stack_log_density_": (mean - log_scale, error)',
        '"stack_log_density_": (mean, error)',
        "stacking/test_estimators.py",
    ),
    *planted(
        "inspection/attribution.py",
        "",
        ("comb(n_features - 1, n_members[without])", "comb(n_features, n_members[without])"),
        ("n_features - 1 - position], axis=2)", "position], axis=2)"),
        ("mean(axis=0) / (n_background * n_pairs)", "mean(axis=0) / n_background"),
        ("path[..., 0, :] = base_outputs[:, None, None]", "path[..., 0, :] = base_outputs.mean(0)"),
        ("index = n_samples + np.arange", "index = np.arange"),
    ),
    Mutant("inspection/invariance.py", "if not len(self.half_widths)", "if False"),
    Mutant("inspection/symmetry.py", "not isinstance(color_by, str) or color_by", "color_by"),
    *planted(
        "laplace/invariance_parameters.py",
        "lila/test_estimators.py",
        ("np.array(self.augmentation.displacement)", "displacement"),
    ),
    *planted(
        "saving/values.py",
        "saving/test_damage.py",
        ('self._arrays.pop(e["name"])', 'self._arrays[e["name"]]'),
        ("self._spend(dtype.itemsize * len(items))", "self._spend(0)"),
        ('{"memory": None} if', "{} if"),
        ("        _check_predictions(estimator)", "        pass"),
    ),
    *planted(
        "base/log_density.py",
        "",
        ("log_constant = 0.5 * log(2 / pi)", "log_constant = 0.5 * log(1 / pi)"),
        ("slope = (d + 1.0) / (1.0 + d / ratio)", "slope = d / (1.0 + d / ratio)"),
        ("slope[self._n_theta :] = 1.0", "slope[self._n_theta :] = 0.0"),
    ),
    *planted(
        "mcmc/kernels.py",
        "mcmc/kernels/test_hmc.py",
        (
            "p = momentum.addcmul(eps, kick(state.gradient), value=0.5)",
            "p = momentum.addcmul(eps, kick(state.gradient), value=1.0)",
        ),
        ("0.5 * kinetic.sum(1) - (end", "0.5 * kinetic.sum(1) + (end"),
    ),
    *planted(
        "mcmc/kernels.py",
        "mcmc/kernels/test_rescaling.py",
        (" + log_scale.double().sum(1)", ""),
        ("if directions is not None:", "if False:"),
    ),
    *planted(
        "mcmc/bridge.py",
        "",
        (
            "log(len(log_l_proposal)) - total, log(n_effective) - total",
            "log(n_effective) - total, log(len(log_l_proposal)) - total",
        ),
        ("(from_proposals + from_draws) ** 0.5", "0.5 * (from_proposals + from_draws) ** 0.5"),
        ("torch.cat(sums) - log(table.order)", "torch.cat(sums)"),
    ),
    *planted(
        "numerics/diagnostics.py",
        "",
        ("np.sqrt((n - 1) / n + between / within)", "np.sqrt(between / within)"),
        ("rho = 1.0 - (within - covariance) / total", "rho = 1.0 - (within + covariance) / total"),
    ),
    *planted(
        "variational/mean_field.py",
        "variational/test_objects.py",
        ("scale).double() ** 2).to(like)", "scale).double()).to(like)"),
    ),
    *planted(
        "variational/layerwise_posterior.py",
        "variational/test_layerwise.py",
        ("(LOG_2PI + 2.0 * self.log_noise)", "(LOG_2PI - 2.0 * self.log_noise)"),
        ("- log_evidence).mean() - log_prior", "- log_evidence).mean() + log_prior"),
    ),
    *planted(
        "base/training.py",
        "laplace/test_row_parameters.py",
        ("self.total_weight - n_effective - missing", "self.total_weight - n_effective"),
    ),
    *planted(
        "linear/hyperparameters.py",
        "linear/test_estimators.py",
        ("value + ranges.scale_prior.log_density", "value - ranges.scale_prior.log_density"),
    ),
    *planted(
        "variational/hidden_layers.py",
        "variational/test_layerwise.py",
        ("2.0 * as_column(prior_scale, loc).log()", "as_column(prior_scale, loc).log()"),
    ),
    *planted(
        "linear/sites.py",
        "",
        (
            "spread.kl + 0.5 * (loc * loc).sum() / prior_variance",
            "spread.kl - 0.5 * (loc * loc).sum() / prior_variance",
        ),
        (
            'self.terms.gradient + torch.einsum("ncd,nd->nc"',
            'self.terms.gradient - torch.einsum("ncd,nd->nc"',
        ),
    ),
    *planted(
        "linear/conjugate.py",
        "",
        ("log(2.0 * pi * s2) + misfit / s2 + volume", "log(2.0 * pi * s2) + misfit / s2 - volume"),
        ("variance * self.projection / s2", "variance * self.projection"),
        ("return sizes.square(), right_vectors.mT", "return sizes, right_vectors.mT"),
        ("rows * weight.sqrt()[:, None]", "rows * weight[:, None]"),
    ),
    *planted(
        "linear/known_errors.py",
        "linear/test_known_errors.py",
        ("log_factor=-0.5 * float", "log_factor=0.5 * float"),
        ("precision = inverse * reference", "precision = inverse"),
        ("centre = relative_precision @ features", "centre = features.mean(0)"),
        ("self.known_variance + exp(2.0 * log_noise)", "self.known_variance + exp(log_noise)"),
        ("peak = climb_grid(values, int(scores.argmax()))", "peak = 5"),
    ),
    *planted(
        "linear/fit.py",
        "linear/test_known_errors.py",
        ("y[:, 1].square(), self.fit_intercept", "y[:, 1], self.fit_intercept"),
        ("** 2 + data.rows.row_parameter**2", "** 2 + 0.0 * data.rows.row_parameter"),
        ("return np.sqrt(np.square(levels) + 1.0 / precision)", "return levels"),
        ("mean + self.centre * scale", "mean"),
    ),
    *planted(
        "base/rows.py",
        "linear/test_known_errors.py",
        ("keys.extend(row_parameter.T)", "pass"),
    ),
    *planted(
        "models/log_targets.py",
        "stacking/test_log_targets.py",
        ("torch.logaddexp(log_ratio.new_zeros(()), log_ratio)", "log_ratio.exp().log1p()"),
        (
            "log_size = amount.abs().log() - log_unit",
            "log_size = (amount.abs() / log_unit.exp()).log()",
        ),
    ),
    *planted(
        "linear/low_rank.py",
        "stacking/test_group_columns.py",
        ("self.scale).to(x) @ self._root().to(x)", "self.scale).to(x) @ self._factor().to(x)"),
    ),
    *planted(
        "base/rows.py",
        "base/test_rows.py",
        ("np.minimum(n_observations, _MAX_PARTS)", "n_observations"),
        ("(rows.weight / n_parts)[position]", "rows.weight[position]"),
        ("if 2 * shares_inputs.sum() > n_distinct:", "if False:"),
        ("> max_values for column", "> len(inverse_index) for column"),
        ("rank * n_parts[inverse_index] // n_copies", "rank * 0 // n_copies"),
    ),
    *planted(
        "base/training.py",
        "base/test_rows.py",
        (
            "rows, inverse_index = split_observations(rows, inverse_index)",
            "pass",
        ),
        ('np.arange(self.n_rows), side="right") - 1', 'np.arange(self.n_rows), side="right") * 0'),
    ),
    *planted(
        "base/training.py",
        "linear/test_known_errors.py",
        ("[y, self.rows.row_parameter / self.y_scaling.scale]", "[y, self.rows.row_parameter]"),
    ),
    *planted(
        "base/noise_levels.py",
        "linear/test_known_errors.py",
        ("freedoms.clamp_min(0.0) / total_weight * variance.log()", "variance.log()"),
    ),
    *planted(
        "models/predictive_mixtures.py",
        "linear/test_known_errors.py",
        ("noise_std.to(self.loc).square()", "noise_std.to(self.loc)"),
    ),
    *planted(
        "models/likelihoods/row_parameters.py",
        "models/likelihoods/test_row_parameters.py",
        ("(2.0 * self.base.log_noise.to(errors)).exp()", "self.base.log_noise.to(errors).exp()"),
        ("self._variance(errors).rsqrt()", "self._variance(errors).sqrt()"),
        ("log_prob(outputs + exposure.log(), counts)", "log_prob(outputs + exposure, counts)"),
        ("(mean + exposure.log(), variance", "(mean - exposure.log(), variance"),
        ("hessian_root(outputs + exposure.log(), counts)", "hessian_root(outputs, counts)"),
        ("(counts / exposure, weight * exposure[:, 0])", "(counts / exposure, weight)"),
    ),
    *planted(
        "models/predictive_mixtures.py",
        "linear/test_exposure.py",
        ("self.outputs + exposure.log().to(self.outputs)", "self.outputs"),
    ),
    *planted(
        "base/regressor.py",
        "linear/test_exposure.py",
        ("predicted = predicted * check_exposure", "predicted = predicted / check_exposure"),
    ),
    *planted(
        "laplace/estimators.py",
        "laplace/test_row_parameters.py",
        ("return extend_likelihood(likelihood)", "return likelihood"),
        ('            requested = "adam"\n', '            requested = "auto"\n'),
    ),
    *planted(
        "laplace/invariant_evidence.py",
        "laplace/test_row_parameters.py",
        ("if errors.numel():\n            noise_variance", "if False:\n            noise_variance"),
    ),
    *planted(
        "stacking/members/linear.py",
        "stacking/test_known_errors.py",
        (
            "measured = distribution.add_known_errors(noise_std.unsqueeze(1))",
            "measured = distribution.add_known_errors(0.0 * noise_std.unsqueeze(1))",
        ),
        ("variance=measured.variance + intercept_variance", "variance=measured.variance"),
    ),
    *planted(
        "stacking/members/gaussian_process.py",
        "stacking/test_known_errors.py",
        ("noise = noise + known_variance / weight", "noise = noise + known_variance.sqrt()"),
        ("(weight=data.weight * relative_precision)", "()"),
        ("HeldOutScores(measured.log_prob", "HeldOutScores(distribution.log_prob"),
    ),
    *planted(
        "base/groups.py",
        "stacking/test_known_errors.py",
        ("(noise_variance.reshape(-1) / weight)", "(noise_variance.reshape(-1)[:1] / weight)"),
    ),
    *planted(
        "stacking/base.py",
        "stacking/test_known_errors.py",
        ("if task.noise_std is not None:", "if False:"),
    ),
    *planted(
        "stacking/estimators.py",
        "stacking/test_known_errors.py",
        ("if others and self.estimators is not None:", "if False:"),
    ),
    *planted(
        "linear/low_rank.py",
        "linear/test_conjugate.py",
        ("np.array(seen) + free[:, None] * unseen", "np.array(seen) + unseen"),
    ),
    *planted(
        "laplace/evidence.py",
        "",
        ("self.log_prior - 0.5 * self.log_det", "self.log_prior + 0.5 * self.log_det"),
        (
            "log_prior = 0.5 * (sizes * log_precision - prior * norms)",
            "log_prior = 0.5 * (sizes * log_precision + prior * norms)",
        ),
    ),
    *planted(
        "laplace/posterior.py",
        "laplace/test_evidence.py",
        (
            "precision.quadratic(deviation), -precision.log_det()",
            "precision.quadratic(deviation), precision.log_det()",
        ),
        ("weight.multinomial(", "torch.ones_like(weight).multinomial("),
    ),
    *planted(
        "factorization/gibbs.py",
        "",
        (
            "shape = max(0.5 * residuals.total_weight, 0.5)",
            "shape = max(0.5 * (residuals.total_weight - 1), 0.5)",
        ),
        ("half + normal.unsqueeze(-1)", "half"),
    ),
    *planted(
        "factorization/coordinate_ascent.py",
        "",
        (
            "rhs / (sqrt(noise.n_components) * noise.variance)",
            "rhs / (noise.n_components * noise.variance)",
        ),
    ),
    *planted(
        "factorization/coordinate_ascent.py",
        "factorization/test_vi.py",
        (
            "total -= 2.0 * float((mean[rows] * equations.rhs)",
            "total -= float((mean[rows] * equations.rhs)",
        ),
    ),
    *planted(
        "factorization/entry_sites.py",
        "",
        ("precision = (-2.0 * terms.d_variance", "precision = (-1.0 * terms.d_variance"),
    ),
    Mutant("factorization/entry_predictor.py", "outputs, weights.log()", "outputs, None"),
    *planted(
        "models/likelihoods/ordinal.py",
        "",
        ("d_steps[:, 1:] *=", "d_steps[:, :1] *="),
        ("torch.erfc(-root_half * b) - torch", "torch.erfc(root_half * b) - torch"),
    ),
    *planted(
        "factorization/hyperpriors.py",
        "",
        (
            "chisquare(b + n - torch.arange(b).numpy())",
            "chisquare(b + n - 1 - torch.arange(b).numpy())",
        ),
        ("0.5 * dof * b * log(2.0) - 0.5 * dof", "0.5 * dof * b * log(2.0) + 0.5 * dof"),
    ),
    *planted(
        "laplace/gauss_newton.py",
        "",
        ("inner.diagonal(dim1=1, dim2=2).add_(1.0)", "inner.diagonal(dim1=1, dim2=2).add_(0.0)"),
        ("return self.diagonal.log().sum(1) + log_det", "return log_det"),
        (
            "return 1.0 - torch.cholesky_inverse(self.inner)",
            "return torch.cholesky_inverse(self.inner)",
        ),
        ("(1.0 - ratio).clamp(", "ratio.clamp("),
        (
            "torch.where(damping > start, damping, lowered)",
            "torch.where(damping < start, damping, lowered)",
        ),
    ),
    *planted(
        "laplace/evidence_problem.py",
        "laplace/test_regression_modes.py",
        ("root = beta.sqrt()", "root = beta"),
        (
            "log_prior - 0.5 * system.log_det",
            "log_prior - 0.5 * system.log_det + prior.log_hyperprior(log_precision)",
        ),
        ("replace(self, weight_factor=self.weight_factor[index])", "self"),
    ),
    *planted(
        "laplace/evidence_problem.py",
        "laplace/test_classification_modes.py",
        ("symmetric_root(weighted) @", "weighted @"),
    ),
    *planted(
        "laplace/mode_finding.py",
        "laplace/test_regression_modes.py",
        ("ended | ~rises", "ended | rises"),
        (
            "is_better = current.score > state.best.score",
            "is_better = current.score < state.best.score",
        ),
        ("aligned, _ = group.align(theta[r] * units[s],", "aligned, _ = theta[r] * units[s], ("),
        ("argsort(descending=True, stable=True)", "argsort(descending=False, stable=True)"),
    ),
    *planted(
        "laplace/mode_finding.py",
        "base/test_processes.py",
        (
            "problem = self.problem.select(index)\n",
            "problem, index = self.problem.select(index), 0 * index\n",
        ),
    ),
    *planted(
        "base/estimator.py",
        "base/test_bad_input.py",
        ("fitted_with.get(name, getattr(self, name))", "getattr(self, name)"),
    ),
    Mutant(
        "stacking/folds.py",
        "n_tests = is_test.sum(axis=0)",
        "n_tests = is_test.any(axis=0)",
        "stacking/test_estimators.py",
    ),
    Mutant("base/groups.py", "inverse.diagonal(0, 1, 2) - 1.0", "inverse.diagonal(0, 1, 2)"),
    Mutant(
        "base/groups.py", "max(mean_size - 1.0, 0.0) * correlation**2", "0.0", "base/test_groups.py"
    ),
    Mutant(
        "stacking/members/gaussian_process.py",
        "block_loc[queries] -= fit.mT @ alpha[own]",
        "block_loc[queries] += fit.mT @ alpha[own]",
        "stacking/test_groups.py",
    ),
    Mutant(
        "stacking/members/gaussian_process.py",
        "response[queries] += fit.mT @ inverse_sum[own]",
        "response[queries] -= fit.mT @ inverse_sum[own]",
        "stacking/test_groups.py",
    ),
    *planted(
        "laplace/defaults.py",
        "laplace/test_defaults.py",
        ("n_rows > self.ample_rows and n_rows *", "n_rows *"),
    ),
    *planted(
        "laplace/defaults.py",
        "",
        (
            "if n_noisy_modes and n_rows >= n_params:",
            "if n_noisy_modes and n_rows < n_params:",
        ),
        ("n_rows * n_outputs > max_targets", "n_rows * n_outputs < max_targets"),
    ),
    *planted(
        "laplace/initialization.py",
        "",
        ("is_training = fold != torch", "is_training = fold == torch"),
        ("    if n <= 3:\n        n_first = 2\n", "    n_first = max(n, 2)\n"),
        ("theta[n_first : n_first + n_missing]", "theta[n : n + n_missing]"),
        ("mean > 0.5 * error", "mean > -0.5 * error"),
        (
            "modes.noise_precision[is_fold].reciprocal().unsqueeze(1)\n    dist",
            "modes.noise_precision[is_fold].rsqrt().unsqueeze(1)\n    dist",
        ),
    ),
    *planted(
        "base/noise_levels.py",
        "",
        (
            "-(freedoms.clamp_min(0.0) * log_std + residual)",
            "freedoms.clamp_min(0.0) * log_std - residual",
        ),
        ("(n / (n - 1.0)) ** 0.5", "(n / (n - 1.0))"),
        ("log(1.0 - share), prior + log(share)", "log(share), prior + log(1.0 - share)"),
    ),
    *planted(
        "base/stacking_weights.py",
        "base/test_stacking_weights.py",
        ("if scaled_derivative(total) >= 0.0", "if scaled_derivative(total) >= 1.0"),
        ("- concentrations[1] * factors[0]", "- concentrations[1]"),
        ("1.0 - weight.unsqueeze(1) * leverage", "1.0 - leverage"),
    ),
    *planted(
        "base/closed_forms.py",
        "base/test_closed_forms.py",
        ("score = distance - spread", "score = distance - 0.5 * spread"),
        ("(loc[s] - loc + variance[s]) / deviation", "(loc[s] - loc) / deviation"),
        ("2.0 * variance * (variance + 2.0 * square)", "2.0 * variance * (variance + square)"),
        ("(mean - values[:-1]) / width", "2.0 * (mean - values[:-1]) / width"),
        ("self.half_slope / 3.0, 0.5 * self.values", "self.half_slope, 0.5 * self.values"),
        ("integral += above * (self.first[-1]", "integral += 0.0 * (self.first[-1]"),
        ("excess += np.abs(end - inside) * beyond", "pass"),
        ("inside = self.clip(y)\n        centre", "inside = y\n        centre"),
    ),
    *planted(
        "base/moment_table.py",
        "base/test_closed_forms.py",
        ("if len(index):", "if False:"),
        ("_SPACING = 0.25", "_SPACING = 2.0"),
    ),
    *planted(
        "base/noise_shape.py",
        "base/test_stacking_weights.py",
        (
            "(distribution.noise_variance * factor.square())",
            "(distribution.noise_variance / factor.square())",
        ),
        ("self.weight * scaled.square().sum(1), by_offset", "0.0 * self.weight, by_offset"),
        (
            "stream = generator_from(int(torch.randint(2**62, (), generator=generator)))",
            "stream = generator",
        ),
    ),
    *planted(
        "base/calibration.py",
        "base/test_stacking_weights.py",
        ("log_softmax_weight + softmax, log_f", "log_frequency_weight + softmax, log_f"),
    ),
    *planted(
        "stacking/members/gaussian_process.py",
        "",
        ("loc = y - variance * alpha", "loc = y + variance * alpha"),
        ("+ shift * response", "- shift * response"),
        ("frequency = (normal((m, d)) *", "frequency = (torch.ones(m, d).double() *"),
    ),
    *planted(
        "stacking/scoring.py",
        "stacking/test_estimators.py",
        (
            "base.log_density(rows.rows.x, rows.targets)",
            "predictor.distribution(rows.rows).log_prob(rows.y)",
        ),
    ),
    *planted(
        "stacking/fit.py",
        "stacking/test_estimators.py",
        ("prior = (score - score.max())", "prior = 0.0 * (score - score.max())"),
    ),
    *planted(
        "stacking/members/networks.py",
        "stacking/test_estimators.py",
        (
            "gain > min_errors * results[stage].error",
            "gain < min_errors * results[stage].error",
        ),
        ("leave_one_out - optimism)", "leave_one_out + optimism)"),
    ),
    *planted(
        "distillation/student_training.py",
        "test_distillation.py",
        (
            "fraction = torch.rand(1, generator=generator, dtype=torch.float32)",
            "fraction = torch.full((1,), 0.5)",
        ),
        ("is_above = 2.0 * upper > width", "is_above = upper > 1e9"),
        ("positive[is_negative, k] = extrapolated", "positive[:, k] = 0.5 + 0.0 * extrapolated"),
    ),
    *planted(
        "numerics/latent_mixtures.py",
        "numerics/test_latent_mixtures.py",
        ("- 0.5 - 1e-9)", "+ 0.5 - 1e-9)"),
        ("self.latent_log_prob(log_y) - log_y", "self.latent_log_prob(log_y)"),
        ("self.latent_cdf(self.edge(np.ceil(y) - 1.0))", "self.latent_cdf(self.edge(y))"),
        ("above / 12.0", "above * 12.0"),
        ("reach).max(axis=0)", "reach + 99.0).max(axis=0)"),
    ),
    *planted(
        "joint_student.py",
        "test_joint_student.py",
        ("- np.log(np.diag(self._root)).sum()", "+ np.log(np.diag(self._root)).sum()"),
        ("@ self._root.T", "@ self._root"),
    ),
    *planted(
        "numerics/bisection.py",
        "numerics/test_bisection.py",
        ("is_below = cdf(middle) < probability", "is_below = cdf(middle) <= 0.9 * probability"),
    ),
    *planted("bayesian_mlp/fit.py", "", ("expit(linear - networks)", "expit(networks - linear)")),
    *planted(
        "bayesian_mlp/fit.py",
        "base/test_interrupts.py",
        ("[fit.stop_reason for fit in self if", "[fit.stop_reason for fit in self[:2] if"),
    ),
    *planted(
        "laplace/map.py",
        "laplace/test_map.py",
        (
            "root = (factor * weight[index]).sqrt()\n    with",
            "root = factor * weight[index]\n    with",
        ),
        ("leverage = 1.0 - torch.cholesky_inverse", "leverage = torch.cholesky_inverse"),
        (
            "dof = (rows.weight.sum() - n_effective)",
            "dof = (rows.weight.sum() - 0.5 * n_effective)",
        ),
        ("self._has_fixed_noise = True", "self._has_fixed_noise = False"),
    ),
    *planted(
        "ensemble/fit.py",
        "ensemble/test_estimators.py",
        (
            "scale.to(weights).expand_as(weights), strict",
            "scale.to(weights).expand_as(weights).flip(0), strict",
        ),
    ),
    *planted(
        "base/training.py",
        "base/test_predictive.py",
        (
            "return -float(self.rows.weight.sum() * np.log",
            "return float(self.rows.weight.sum() * np.log",
        ),
    ),
    *planted(
        "base/rows.py",
        "",
        (
            "distinct_weight = np.bincount(inverse_index[up], weights=weight[up]",
            "distinct_weight = np.bincount(inverse_index[up], weights=weight",
        ),
    ),
    *planted(
        "variational/fit.py",
        "variational/test_objects.py",
        ("hold=symmetry_gap.hold", "hold=1"),
        ("round(fraction * max_iter)", "round(fraction)"),
    ),
    *planted(
        "variational/fit.py",
        "variational/test_estimators.py",
        ("if ratio > 0.95:", "if ratio < 0.95:"),
    ),
    *planted(
        "variational/fit.py",
        "variational/test_objects.py",
        ("elbo >= highest - margin", "elbo >= highest"),
    ),
    *planted(
        "base/messages.py",
        "base/test_convergence.py",
        ('("fifth", 5, 10.0 * tol)', '("fifth", 10, 10.0 * tol)'),
    ),
    *planted(
        "mcmc/chains.py",
        "",
        ("self._pending[move // thin]", "self._pending[move // thin - 1]"),
    ),
    *planted(
        "mcmc/within_mode.py",
        "",
        ("warm.complete and _boundary_loss", "_boundary_loss"),
        ("budget.remaining -= budget.move_cost", "budget.move_cost"),
    ),
    *planted(
        "factorization/vi.py",
        "",
        ("NEGLIGIBLE_GAIN = 1.0", "NEGLIGIBLE_GAIN = 0.0"),
    ),
    *planted(
        "factorization/side_features.py",
        "factorization/test_ratings.py",
        ("safe_indexing(self.table, order[index])", "safe_indexing(self.table, index)"),
    ),
    *planted(
        "base/quadrature.py",
        "base/test_closed_forms.py",
        ("    @cached_property\n    def _components", "    @property\n    def _components"),
    ),
    *planted(
        "base/target_transformation.py",
        "base/test_predictive.py",
        ("np.exp, np.log, lambda y: -np.log(y)", "np.exp, np.log, lambda y: np.log(y)"),
    ),
    *planted(
        "models/rounded_targets.py",
        "stacking/test_own_distributions.py",
        ("self.base.cdf(counts.clamp_min(0.0) + 0.5)", "self.base.cdf(counts.clamp_min(0.0))"),
        ("torch.where(counts == 0.0, -torch.inf, lower)", "lower"),
    ),
    *planted(
        "factorization/entry_distribution.py",
        "factorization/test_ratings.py",
        ("return (distance - spread)", "return (distance + spread)"),
    ),
    *planted(
        "factorization/estimators.py",
        "factorization/test_ratings.py",
        (
            "        self._validate_params()\n        refuse_parameters(",
            "        refuse_parameters(",
        ),
    ),
    *planted(
        "factorization/context.py",
        "factorization/test_context.py",
        ("moved @ (gram @ moved - 2.0 * cross)", "moved @ (gram @ moved - cross)"),
        ("mean.square().sum() + cov.trace()", "mean.square().sum()"),
    ),
    *planted(
        "factorization/entry_encoder.py",
        "factorization/test_ratings.py",
        ("X = safe_indexing(X, order)", "pass"),
    ),
    *planted(
        "factorization/labels.py",
        "factorization/test_lists.py",
        ("spellings.get(number, str(number))", "str(number)"),
        ("            return as_integers", "            return labels"),
        ("None else int(matched[1])", "None else None"),
    ),
    *planted(
        "factorization/frames.py",
        "factorization/test_lists.py",
        ("pattern.fullmatch(", "pattern.match("),
        ("if len(orders) > 1", "if len(orders) > 9"),
        ("sorted(texts, key=parsed.__getitem__)", "sorted(texts)"),
    ),
    *planted(
        "factorization/ratings.py",
        "factorization/test_lists.py",
        ("np.where(mask, np.nan, np.ma.getdata(X))", "np.ma.getdata(X)"),
    ),
    *planted(
        "factorization/splitters.py",
        "factorization/test_lists.py",
        ("splitter.columns = columns", "pass"),
        ("rank = np.searchsorted(np.sort(times), times)", "rank = np.arange(len(times))"),
    ),
    *planted(
        "factorization/fit.py",
        "factorization/test_ratings.py",
        ("growth: float = 1.5", "growth: float = 15.0"),
    ),
    *planted(
        "mcmc/mode_weights.py",
        "mcmc/test_modes.py",
        ("return budget, left - budget.remaining", "return budget, left"),
        ("max(0.5 * left, left - requested)", "left"),
    ),
    Mutant("mcmc/mode_evidence.py", "keepdim=True) >= MIN_CHAIN_LENGTH", "keepdim=True) >= 1"),
    *planted("mcmc/fit.py", "mcmc/test_estimators.py", ("thinning=sampler.thinning", "thinning=1")),
    Mutant("laplace/starting_points.py", "[1].count(1) <=", "[1].count(1) >="),
    *planted(
        "mcmc/estimators.py",
        "base/test_likelihoods.py",
        ('{"counts", "heteroscedastic"}', '{"counts"}'),
    ),
    *planted(
        "base/weighted_draws.py",
        "mcmc/test_evidence.py",
        ("        return noise_std.scale", "        return 1.0"),
    ),
    *planted(
        "laplace/adam_laplace.py",
        "lila/test_estimators.py",
        ("needs_gradient or not problem.model.n_half_widths", "needs_gradient"),
    ),
    *planted(
        "laplace/adam_laplace.py",
        "lila/test_estimators.py",
        ("max_half_width_rate, noise_limit, rate)", "max_half_width_rate, rate)"),
    ),
    *planted(
        "laplace/adam_laplace.py",
        "base/test_defaults.py",
        ("if self._has_narrow_start(model.likelihood):", "if False:"),
    ),
    *planted(
        "lila/estimators.py",
        "base/test_defaults.py",
        ('PriorParameter = "learn"', "PriorParameter = 3.0"),
    ),
]


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
