"""Names of likelihoods: one table for estimators, saved files and the documentation."""

from collections.abc import Callable, Iterator, Mapping

from skbayes_sym.models.likelihoods.likelihood import (
    ClassLikelihood,
    Likelihood,
    TargetLikelihood,
)
from skbayes_sym.numerics.arguments import short_repr

_BY_NAME: dict[str, Likelihood] = {}
_CLASSES: dict[str, type[Likelihood]] = {}


def register_likelihood(likelihood: Likelihood | type[Likelihood], name: str | None = None) -> None:
    """Let estimators take a likelihood by name, and let saved models contain it.

    Every estimator that supports the likelihood then accepts ``likelihood=name``: regressors
    accept those of targets, classifiers those of classes, and an estimator with further
    requirements (one output per target, for example) accepts those that meet them.

    Parameters
    ----------
    likelihood : Likelihood or type
        An instance, whose parameters are those that ``name`` stands for. A class without a
        default instance is registered without a name: models with an instance of it can then be
        saved. The class is a dataclass that inherits from `TargetLikelihood` or
        `ClassLikelihood`, and all its state is in its fields.
    name : str, optional
        Value of the parameter ``likelihood``. By default only the class is registered.

    Raises
    ------
    ValueError
        If another likelihood has this name, or another class has the same name as this class.
        Registering the same class again replaces the instance.
    TypeError
        If ``likelihood`` inherits from neither base class, or if a class is given with a name.

    Notes
    -----
    A registration belongs to the process. Put the call into the module that defines the class, so
    that worker processes and programs that load a saved model import it too.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> import torch
    >>> from skbayes_sym.models import TargetLikelihood, register_likelihood
    >>> @dataclass(frozen=True, eq=False)
    ... class UnitLaplace(TargetLikelihood):
    ...     def distribution(self, outputs):
    ...         return torch.distributions.Laplace(outputs, 1.0, validate_args=False)
    >>> register_likelihood(UnitLaplace(), "unit_laplace")
    """
    if isinstance(likelihood, type):
        cls = likelihood
    else:
        cls = type(likelihood)
    if not issubclass(cls, TargetLikelihood | ClassLikelihood):
        raise TypeError(
            f"a registered likelihood inherits from TargetLikelihood or ClassLikelihood, got "
            f"{short_repr(likelihood)}."
        )
    if isinstance(likelihood, type) and name is not None:
        raise TypeError(f"name={name!r} stands for an instance, got the class {cls.__name__}.")
    # A class that is defined again, in a notebook for example, replaces the earlier one.
    known = _CLASSES.get(cls.__name__, cls)
    if (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
        raise ValueError(
            f"there is a likelihood class {cls.__name__} already, {known.__module__}."
            f"{known.__qualname__}: give this class another name."
        )
    if name is not None:
        if name == "auto" or (name in _BY_NAME and type(_BY_NAME[name]).__name__ != cls.__name__):
            raise ValueError(f"the name {name!r} is in use already: choose another one.")
        _BY_NAME[name] = likelihood  # type: ignore[assignment]
    _CLASSES[cls.__name__] = cls


def registered_classes() -> Mapping[str, type[Likelihood]]:
    """Classes of the likelihoods that saved models may contain, by their names."""
    return _CLASSES


class SupportedLikelihoods(Mapping[str, Likelihood]):
    """Registered likelihoods that an estimator supports, by name.

    This is a view: it includes likelihoods that are registered later.

    Parameters
    ----------
    is_supported : callable (likelihood) -> bool
        Whether the estimator supports a likelihood.
    further : mapping of str to Likelihood, optional
        Names that only this estimator knows, such as "auto". They come first.
    """

    def __init__(
        self,
        is_supported: Callable[[Likelihood], bool],
        further: Mapping[str, Likelihood] | None = None,
    ) -> None:
        self._is_supported = is_supported
        self._further = dict(further or {})

    def __getitem__(self, name: str) -> Likelihood:
        if name in self._further:
            return self._further[name]
        likelihood = _BY_NAME[name]
        if not self._is_supported(likelihood):
            raise KeyError(name)
        return likelihood

    def __iter__(self) -> Iterator[str]:
        yield from self._further
        for name, likelihood in _BY_NAME.items():
            if name not in self._further and self._is_supported(likelihood):
                yield name

    def __len__(self) -> int:
        return sum(1 for _ in self)


def is_target_likelihood(likelihood: Likelihood) -> bool:
    """Whether a likelihood is one of real targets or counts."""
    return isinstance(likelihood, TargetLikelihood)


def is_class_likelihood(likelihood: Likelihood) -> bool:
    """Whether a likelihood is one of classes."""
    return isinstance(likelihood, ClassLikelihood)


REGRESSION_LIKELIHOODS = SupportedLikelihoods(is_target_likelihood)
CLASSIFICATION_LIKELIHOODS = SupportedLikelihoods(is_class_likelihood)
