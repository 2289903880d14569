"""Names of a package that are imported when they are first used (PEP 562)."""

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def lazy_names(
    package: str, modules: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` of a package that defines ``__all__``.

    Parameters
    ----------
    package : str
        Name of the package.
    modules : mapping of str to sequence of str
        Modules, relative to the package, and the public names that they define.

    Returns
    -------
    get_attribute : callable
        Imports a public name, or a module of the package, when it is first used.
    list_names : callable
        Lists ``__all__`` and the modules.
    """
    module_by_name = {name: module for module, names in modules.items() for name in names}
    submodules = {module.partition(".")[0] for module in modules}

    def get_attribute(name: str) -> Any:
        if name in module_by_name:
            value = vars(import_module(f"{package}.{module_by_name[name]}"))[name]
        elif name in submodules:
            value = import_module(f"{package}.{name}")
        else:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        setattr(sys.modules[package], name, value)
        return value

    def list_names() -> list[str]:
        names = vars(sys.modules[package])
        own = {name for name in names if name.startswith("__")}
        return sorted({*own, *names["__all__"], *submodules})

    return get_attribute, list_names
