"""From a path with images to a study: what the path holds, a recipe, its size and its file."""

from typing import TYPE_CHECKING

from dml_core.lazy_names import import_when_used

if TYPE_CHECKING:
    from dml_core.asking.looking import FoundData, look_at
    from dml_core.asking.recipes import Recipe, choose_recipe

__all__ = ["FoundData", "Recipe", "choose_recipe", "look_at"]
__getattr__ = import_when_used(
    __name__, {"looking": ["FoundData", "look_at"], "recipes": ["Recipe", "choose_recipe"]}
)
