"""Constants behind the default stack, and the plan of its fit."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from skbayes_sym.base.plan import PlannedStage, TableSize

if TYPE_CHECKING:
    from skbayes_sym.stacking.members.base import Member


@dataclass(frozen=True)
class StackDefaults:
    """Numbers behind a stack."""

    n_folds: int = 5
    # Scale of the Dirichlet prior of the weights, in nats per row. The best member counts as one
    # observed row, and a member that is this much behind as 1/e of a row. If all members count as
    # one row, tables of 30 rows lose 0.013 nats per row. If none does, one of them loses 6.8.
    prior_score_scale: float = 1.0
    # Smaller stacking weights are set to 0, and these members aren't evaluated in predictions.
    # Small weights insure against overconfident members: if those below 0.01 are set to 0 instead,
    # tables of 200 rows lose up to 18 nats per row (`asv_bench/studies/small_weights.py`).
    min_weight: float = 1e-3
    # Rows that are predicted together. In larger blocks trees are faster, since each is read from
    # memory once per block: 10,000 rows and the forest of 10,000 take 7.2, 2.7, 1.7 units in blocks
    # of 512, 4,096 and 10,000. A unit is the time in which boosting is fitted to 1,000 x 8 rows.
    max_block_rows: int = 4096
    # Smallest weight in the last fit with which a warm start fits a member again.
    min_refit_weight: float = 0.05
    # A warm start fits all members if the table has this many times the rows of the last full fit.
    full_refit_growth: float = 1.5
    # Blocks of the progress that callbacks see, and the time of each kind of stage relative to that
    # of a cheap member.
    progress_blocks: int = 500
    progress_costs: Mapping[str, float] = field(
        default_factory=lambda: {
            "fit_member": 1.0,
            "probe_networks": 2.0,
            "fit_networks": 15.0,
            "maximise_leave_one_out_score": 1.0,
        }
    )
    # Networks are fitted only if a probe raises the held-out score of the stack by more than this
    # many standard errors.
    min_gain_errors: float = 2.0
    # A probe has the first of these widths that takes at most this number of multiplications, about
    # the time of the other members together. Networks aren't tried if no width does. Eight units
    # see nothing of `yacht` and little of `airfoil`, from which twenty gain 0.08 and 0.04 nats per
    # row.
    probe_widths: tuple[int, ...] = (20, 8)
    max_probe_work: float = 3e10
    # In classification it also has so many rows per weight, except for the last width.
    min_probe_rows_per_weight: int = 4
    # Gauss-Newton steps of a probe of regression with all rows, and tolerance in nats per row. It
    # makes up to twice as many while the evidence rises steeply, and then these steps without each
    # fold. On the tables that chose constants, neither twice as many steps nor a second start
    # gain anything.
    probe_steps: int = 50
    probe_fold_steps: int = 5
    probe_tol: float = 1e-3
    # Modes of the networks in regression with more than so many rows, where three take a third more
    # time. With fewer rows two modes lose too much: 0.23 and 0.016 nats per row with 600 and 3,200
    # rows of `kin40k`.
    large_table_rows: int = 5000
    large_table_modes: int = 2
    # Smallest gain of members that model the logarithm of positive targets, in leave-one-out nats
    # per row of the stack. Without it they are left out, and the stack is as if they didn't exist.
    min_log_gain: float = 0.005
    # Means and variances of these members count larger targets as this many times the largest one.
    max_target_factor: float = 10.0
    n_trees: int = 100
    # Share of the out-of-bag mean squared error that is added to the variance of the leaves.
    leaf_variance_fraction: float = 0.01
    # Largest number of boosting rounds. The number is chosen by cross-validation.
    max_rounds: int = 75
    # With three classes or more, a round has one tree for each class. This is the largest number of
    # all trees, and the number of rounds that it never goes below.
    max_classification_trees: int = 400
    min_classification_rounds: int = 30
    # In regression 75 rounds at 0.2 are as good as 150 at 0.1. Classes lose 0.005 nats per row on
    # average with up to 3,000 rows of six tables.
    learning_rate: float = 0.2
    classification_learning_rate: float = 0.1
    max_leaf_nodes: int = 15
    min_leaf_rows: int = 10
    # Histogram bins of all columns together, with at most 255 per column.
    max_total_bins: int = 8192
    min_bins: int = 32


@dataclass(frozen=True)
class StackSettings:
    """Settings of the user on which the plan depends.

    Parameters
    ----------
    members : mapping of str to Member
        Unfitted members by name.
    """

    members: Mapping[str, "Member"]


def plan_fit(
    size: TableSize, settings: StackSettings, defaults: StackDefaults = StackDefaults()
) -> list[PlannedStage]:
    """Plan the fit of a stack.

    Parameters
    ----------
    size : TableSize
        Rows, encoded columns and classes of the training data.
    settings : StackSettings
        Members of the stack.
    defaults : StackDefaults
        Constants of the stack.

    Returns
    -------
    list of PlannedStage
        Cheap members come first, in the order in which the user named them. Expensive members
        follow, since their rules compare them with the others. The weights are last.
    """
    stages = []
    ordered = sorted(settings.members.items(), key=lambda item: item[1].is_expensive)
    for name, member in ordered:
        stages += member.plan(name, size, defaults)
    weights = PlannedStage("weights", "maximise_leave_one_out_score", runs_after_stop=True)
    return [*stages, weights]
