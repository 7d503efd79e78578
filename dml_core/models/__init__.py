"""Trunks, heads and the embedding model made of both."""

from dml_core.models.building import build_embedding_model, build_model
from dml_core.models.embedding_model import EmbeddingModel
from dml_core.models.problems import ModelError

__all__ = ["EmbeddingModel", "ModelError", "build_embedding_model", "build_model"]
