"""How often Python looks for garbage in cycles; freeing what nobody refers to is another matter."""

import atexit
import gc

_NEW_OBJECTS = 50_000
"""How many come before the next search. Python's own 700 is for programs that import little."""


def search_garbage_seldom() -> None:
    """Lets a process that imports much start and end faster.

    Half a million objects come with Prefect, MLflow, Ray and torch. Searching them again and again
    while they are imported takes a sixth of that time, and the search at the end, in which nothing
    can be gained, a second more.
    """
    gc.set_threshold(_NEW_OBJECTS)
    atexit.register(gc.freeze)
