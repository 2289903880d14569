"""Plans of default fits: stages with rules, and their execution.

A plan is made from sizes and settings alone. Conditions on earlier results are rules, which
`execute` evaluates. The actions that it calls contain no such decisions.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Results = Mapping[str, Any]
Action = Callable[..., Any]


@dataclass(frozen=True)
class TableSize:
    """Size of the training data after encoding.

    Parameters
    ----------
    n_rows : int
        Number of rows after equal ones were merged.
    n_columns : int
        Number of encoded columns.
    n_outputs : int, default=1
        Number of targets, for regression.
    n_classes : int, default=0
        Number of classes; 0 for regression.
    total_weight : float, optional
        Sum of the sample weights; by default the number of rows.
    """

    n_rows: int
    n_columns: int
    n_outputs: int = 1
    n_classes: int = 0
    total_weight: float | None = None


@dataclass(frozen=True)
class Rule:
    """Condition on earlier results under which a stage runs.

    Parameters
    ----------
    holds : callable
        Maps the results of earlier stages to True or False.
    reason : str
        Why the stage is skipped if the condition doesn't hold, as a clause.
    """

    holds: Callable[[Results], bool]
    reason: str


def never(reason: str) -> Rule:
    """Rule of a stage that is skipped for a reason that is known before the fit."""
    return Rule(lambda _: False, reason)


@dataclass(frozen=True)
class PlannedStage:
    """One stage of a plan.

    Parameters
    ----------
    name : str
        Key of its result, and its name in summaries.
    action : str
        Name of the action that `execute` calls.
    settings : mapping
        Keyword arguments of the action.
    rules : sequence of Rule
        The stage runs only if all of them hold.
    runs_after_stop : bool, default=False
        Whether the stage runs even if the fit was stopped before.
    """

    name: str
    action: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    rules: Sequence[Rule] = ()
    runs_after_stop: bool = False

    def __str__(self) -> str:
        lines = [f"{self.name}: {self.action}({format_settings(self.settings)})"]
        lines += [f"    skipped if {rule.reason}" for rule in self.rules]
        return "\n".join(lines)


def format_settings(settings: Mapping[str, Any]) -> str:
    """Format settings as keyword arguments, with separators between thousands."""
    texts = {
        key: f"{value:,}" if type(value) is int else str(value) for key, value in settings.items()
    }
    return ", ".join(f"{key}={text}" for key, text in texts.items())


def format_plan(plan: Iterable[PlannedStage]) -> str:
    """Format a plan as text with one line per stage and one per rule."""
    return "\n".join(str(stage) for stage in plan)


@dataclass(frozen=True)
class Execution:
    """Outcome of a plan.

    Parameters
    ----------
    results : dict
        Result of each stage that ran, by its name.
    skipped : dict
        Reason for each stage that was skipped.
    unreached : list of str
        Names of the stages that a stopped fit didn't reach.
    """

    results: dict[str, Any] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    unreached: list[str] = field(default_factory=list)

    def format(self, plan: Iterable[PlannedStage], describe: Callable[[str], str]) -> str:
        """Format the plan with the outcome of each stage, one line per stage.

        Parameters
        ----------
        plan : iterable of PlannedStage
            Plan that was executed.
        describe : callable
            Maps the name of a stage that ran to a description of its result.

        Returns
        -------
        str
            Lines with the name and the settings of each stage, and its result or the reason why it
            has none.
        """
        lines = []
        for stage in plan:
            details = {k: v for k, v in stage.settings.items() if v != stage.name}
            settings = format_settings(details)
            if settings:
                title = f"{stage.name} ({settings})"
            else:
                title = stage.name
            if stage.name in self.results:
                outcome = describe(stage.name)
            elif stage.name in self.skipped:
                outcome = f"skipped because {self.skipped[stage.name]}"
            else:
                outcome = "not reached before the fit was stopped"
            lines.append(f"{title}: {outcome}")
        return "\n".join(lines)


def _never_stop() -> bool:
    return False


def execute(
    plan: Sequence[PlannedStage],
    actions: Mapping[str, Action],
    should_stop: Callable[[], bool] = _never_stop,
) -> Execution:
    """Run the stages of a plan in order.

    Parameters
    ----------
    plan : sequence of PlannedStage
        Stages.
    actions : mapping of str to callable
        Actions by name. They are called as ``action(results, **settings)``.
    should_stop : callable, optional
        Evaluated before each stage. If it returns True, the remaining stages aren't run, except for
        those with ``runs_after_stop``.

    Returns
    -------
    Execution
        Results, and why other stages have none.
    """
    execution = Execution()
    is_stopped = False
    for stage in plan:
        is_stopped = is_stopped or should_stop()
        if is_stopped and not stage.runs_after_stop:
            execution.unreached.append(stage.name)
            continue
        broken = next((rule for rule in stage.rules if not rule.holds(execution.results)), None)
        if broken is not None:
            execution.skipped[stage.name] = broken.reason
            continue
        action = actions[stage.action]
        execution.results[stage.name] = action(execution.results, **stage.settings)
    return execution
