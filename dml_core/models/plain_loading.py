"""Reads what torch.save wrote, without running code and without taking more memory than the file.

A stranger's file may hold tensors and plain values only. It may also lie about their sizes: a
compressed member, one number that claims to be a trillion, lists that repeat each other.
"""

import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

MAX_VALUES = 1_000_000
"""Values in a file, those that are referred to twice counted twice."""


class UnsafeFile(ValueError):
    """A file of tensors is not what an honest writer makes; the message says why."""


def load_plain(path: Path) -> Any:
    """Returns the tensors and plain values of a file; raises whatever torch does for other bytes.

    Raises:
        UnsafeFile: where the content would take more memory than an honest file of its size.
    """
    _check_is_not_compressed(path)
    content = torch.load(path, map_location="cpu", weights_only=True)
    _count(content, MAX_VALUES)
    return content


def _check_is_not_compressed(path: Path) -> None:
    # torch.save compresses nothing, so that the members are never larger than the file.
    if not zipfile.is_zipfile(path):
        return
    with zipfile.ZipFile(path) as archive:
        claimed = sum(member.file_size for member in archive.infolist())
    if claimed > os.path.getsize(path):
        raise UnsafeFile(f"it claims to unpack to {claimed:,} bytes, more than it has")


def _count(value: Any, budget: int) -> int:
    """Returns what is left of the budget after a value and all in it."""
    if budget <= 0:
        raise UnsafeFile(f"it holds more than {MAX_VALUES:,} values")
    budget -= 1
    if isinstance(value, Tensor):
        _check_has_its_storage(value)
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            budget = _count(inner, _count(key, budget))
    elif isinstance(value, list | tuple | set | frozenset):
        for inner in value:
            budget = _count(inner, budget)
    return budget


def _check_has_its_storage(tensor: Tensor) -> None:
    if tensor.layout != torch.strided or tensor.is_quantized:
        raise UnsafeFile(f"it holds a tensor of another kind ({tensor.layout})")
    if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
        shape = tuple(tensor.shape)
        raise UnsafeFile(f"it holds a tensor that claims the shape {shape} without so many numbers")
