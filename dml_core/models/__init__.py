"""The embedding model: a trunk with a head."""

from dml_core.models.blocks import ModelError
from dml_core.models.building import build_embedding_model, build_model
from dml_core.models.embedding_model import EmbeddingModel

__all__ = ["EmbeddingModel", "ModelError", "build_embedding_model", "build_model"]
