"""Public names of a package that import their module when they are first used.

Torch and faiss take seconds to import. A package with such a module exports it by this means, so
that reading one of its light modules, or `dml --help`, does not wait for them:

    if TYPE_CHECKING:
        from dml_core.evaluation.evaluate import evaluate_embeddings

    __all__ = ["evaluate_embeddings"]
    __getattr__ = import_when_used(__name__, {"evaluate": ["evaluate_embeddings"]})
"""

from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any


def import_when_used(package: str, names: Mapping[str, Iterable[str]]) -> Callable[[str], Any]:
    """Returns the `__getattr__` of a package.

    Args:
        package: its `__name__`.
        names: the public names of each of its modules.
    """
    homes = {name: module for module, listed in names.items() for name in listed}

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{homes[name]}"), name)

    return find
