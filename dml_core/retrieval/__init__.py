"""Search in a folder of images: find the files, index their embeddings, show the nearest."""

from typing import TYPE_CHECKING

from dml_core.lazy_names import import_when_used

if TYPE_CHECKING:
    from dml_core.retrieval.folder_index import FolderIndex
    from dml_core.retrieval.vector_index import VectorIndex

__all__ = ["FolderIndex", "VectorIndex"]
__getattr__ = import_when_used(
    __name__, {"folder_index": ["FolderIndex"], "vector_index": ["VectorIndex"]}
)
