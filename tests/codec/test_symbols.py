"""A tensor as a matrix, and the dtype of its indices."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from softshare.codec.symbols import index_dtype, matrix_shape
from softshare.quantization import quantized as quantize


@pytest.mark.parametrize(
    ("shape", "matrix"),
    [
        ((), (1, 1)),
        ((7,), (1, 7)),
        ((0,), (1, 0)),
        ((3, 4), (3, 4)),
        ((0, 4), (0, 4)),
        ((4, 0), (4, 0)),
        ((20, 3, 5, 5), (20, 75)),
        ((2, 0, 5), (2, 0)),
    ],
)
def test_a_tensor_as_a_matrix(shape: tuple[int, ...], matrix: tuple[int, int]) -> None:
    assert matrix_shape(shape) == matrix


@pytest.mark.parametrize(
    ("n_values", "dtype"),
    [
        (1, np.uint8),
        (256, np.uint8),
        (257, np.int16),
        (32_768, np.int16),
        (32_769, np.int32),
        (1 << 24, np.int32),
    ],
)
def test_the_narrowest_dtype_that_holds_every_index(n_values: int, dtype: type) -> None:
    assert index_dtype(n_values) == dtype
    assert np.iinfo(dtype).max >= n_values - 1
    assert torch.from_numpy(np.zeros(0, index_dtype(n_values))).dtype == quantize.index_dtype(n_values)
