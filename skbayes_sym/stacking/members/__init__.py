"""Models that a stack can contain, one file per model, and their registry.

* `base`: interface of a member
* `linear`: Bayesian linear model
* `trees`: extremely randomised trees
* `boosting`: histogram gradient boosting
* `gaussian_process`: Gaussian process with one length scale per column and a linear part
* `log_target`: another member that models the logarithm of the targets
* `counts`: linear model and boosting of the rate of counts
* `networks`: `BayesianMLPRegressor` or `BayesianMLPClassifier`
* `user_estimator`: estimator of the user
"""

from collections.abc import Callable

from skbayes_sym.stacking.members.base import Member
from skbayes_sym.stacking.members.boosting import Boosting
from skbayes_sym.stacking.members.counts import BoostedCounts, LinearCounts
from skbayes_sym.stacking.members.gaussian_process import GaussianProcessMember
from skbayes_sym.stacking.members.linear import Linear
from skbayes_sym.stacking.members.log_target import LogTarget
from skbayes_sym.stacking.members.networks import Networks
from skbayes_sym.stacking.members.trees import ExtraTrees
from skbayes_sym.stacking.members.user_estimator import UserEstimator

__all__ = [
    "COUNT_MEMBERS",
    "LOG_MEMBERS",
    "MEMBERS",
    "LogTarget",
    "Member",
    "Networks",
    "UserEstimator",
]

# Default members by name. Cheap members come first, since networks are only fitted if they are
# competitive with the others.
MEMBERS: dict[str, Callable[[], Member]] = {
    "linear": Linear,
    "trees": ExtraTrees,
    "boosting": Boosting,
    "gaussian_process": GaussianProcessMember,
    "networks": Networks,
}

# Additional default members of regression if all targets are positive.
LOG_MEMBERS: dict[str, Callable[[], Member]] = {
    "log_linear": lambda: LogTarget(Linear()),
    "log_trees": lambda: LogTarget(ExtraTrees()),
    "log_gaussian_process": lambda: LogTarget(GaussianProcessMember()),
}

# Default members of regression with exposures, in place of all others.
COUNT_MEMBERS: dict[str, Callable[[], Member]] = {
    "count_linear": LinearCounts,
    "count_boosting": BoostedCounts,
}
