"""Puts faiss's searches on graphics cards, where a faiss that can is installed."""

from typing import Any

import faiss

from dml_core.config.evaluation import SearchDevice

MAX_NEIGHBORS = 2048
"""Most neighbours that faiss finds on a graphics card."""


def check_search_device(device: SearchDevice) -> None:
    """Raises ValueError where graphics cards are asked for and faiss sees none."""
    if device == "gpu" and not faiss.get_num_gpus():
        raise ValueError(
            "evaluation.search_device=gpu needs a graphics card and a faiss that was built for "
            f"them. faiss {faiss.__version__} here sees none. Install faiss-gpu instead of "
            "faiss-cpu on the machines that evaluate, or use evaluation.search_device=cpu."
        )


class PlacedIndex:
    """An exact index that searches where it was asked to, and on the CPU what cards cannot."""

    def __init__(self, index: Any, device: SearchDevice) -> None:
        check_search_device(device)
        self._index = index
        self._on_cards: Any = faiss.index_cpu_to_all_gpus(index) if device == "gpu" else None

    def search(self, queries: Any, count: int) -> tuple[Any, Any]:
        """Returns (B, K) distances and positions of the nearest ones."""
        fits = self._on_cards is not None and count <= MAX_NEIGHBORS
        found: tuple[Any, Any] = (self._on_cards if fits else self._index).search(queries, count)
        return found
