"""Exact retrieval, clustering and continuous-label metrics."""
