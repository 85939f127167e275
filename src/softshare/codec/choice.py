"""Which code a tensor gets: by its bytes, and by the time that it takes to decode them (`EncodeConfig.speed`).

A sparse tensor has the adaptive coder, which earns 20 to 40% there. Of a dense one, the static code is measured. A
sample tells about the adaptive coder: it learns on one part of the tensor and is measured on the next. For the smallest
file both code every large tensor whole.
"""

from __future__ import annotations

import numpy as np

from softshare.codec import steps
from softshare.codec.adaptive.rangecoder import Bytes
from softshare.codec.parallel import Run, one_by_one
from softshare.codec.shared_section import Section
from softshare.codec.static import code as static_code
from softshare.codec.static.classes import Choice, choose
from softshare.codec.static.rans import BY_COLUMN, BY_ROW
from softshare.codec.static.tables import MOST_SYMBOLS, SLOTS
from softshare.codec.symbols import FAST_ABOVE, Indices, matrix_shape
from softshare.config import EncodeConfig
from softshare.config.settings import Speed

BYTES_PER_SECOND = 30_000  # that a second of decoding is worth, when 'balanced'
STATIC_FROM = 1 << 16  # numbers; with fewer the adaptive coder is always meant, and files stay version 1
LOSSLESS_FROM = 1 << 12  # the same if no tensor of the file is shared
LOSSLESS_GAIN = 0.03  # of the bytes as they are, that the adaptive coder must save then if 'balanced'
DENSE = 0.25  # part of the weights that are not zero, from which the static code is considered when 'balanced'
SAMPLE = range(1 << 14, 1 << 16)  # weights, a 128th of the tensor within these bounds


def lanes_for(speed: Speed) -> int:
    return static_code.GPU_LANES if speed == "fastest" else static_code.LANES


def worth_of(step_count: float) -> float:
    """The bytes that are worth as much as these steps of decoding, when 'balanced'."""
    return step_count * steps.SECONDS * BYTES_PER_SECOND


def encode(
    indices: Indices,  # (numel,)
    shape: tuple[int, ...],
    n_values: int,
    n_nonzero: int,  # at least 1
    config: EncodeConfig,
    run: Run = one_by_one,
) -> Section:
    """The best code of a shared tensor's indices."""
    if config.codec == "han":
        from softshare.codec import han

        return Section(han.encode_tensor(indices, shape, n_values, n_nonzero))
    sparse = config.speed == "balanced" and n_nonzero < DENSE * len(indices)
    if sparse or len(indices) < STATIC_FROM or not 2 <= n_values <= MOST_SYMBOLS:
        return _adaptive(indices, shape, n_values, n_nonzero, config, run)
    rows, cols = matrix_shape(shape)
    symbols = static_code.as_symbols(indices)
    choice = choose(symbols, rows, cols, n_values)

    def static() -> Section:
        lanes = lanes_for(config.speed)
        return Section(static_code.encode(symbols, rows, cols, n_values, lanes, choice=choice, run=run), static=True)

    if config.speed == "fastest":
        return static()
    if config.speed == "balanced":
        saved = steps.adaptive(len(indices), n_nonzero, n_values) - steps.STATIC * len(indices)
        adaptive_bits = choice.bits * _sampled_ratio(indices, shape, n_values, choice)
        if choice.bits <= adaptive_bits + 8 * worth_of(saved):
            return static()
        return _adaptive(indices, shape, n_values, n_nonzero, config, run)
    adaptive = _adaptive(indices, shape, n_values, n_nonzero, config, run)
    return adaptive if choice.bits / 8 >= len(adaptive) else min(adaptive, static(), key=len)


def _adaptive(
    indices: Indices, shape: tuple[int, ...], n_values: int, n_nonzero: int, config: EncodeConfig, run: Run
) -> Section:
    from softshare.codec.adaptive import bands, encode_tensor

    bits = bands.bits_for(shape) if config.speed != "smallest" else 0
    if bits:
        return Section(bands.encode_bands(indices, shape, n_values, bits, run), bands=True)
    return Section(encode_tensor(indices, shape, n_values, n_nonzero))


def _sampled_ratio(indices: Indices, shape: tuple[int, ...], n_values: int, choice: Choice) -> float:
    """The adaptive coder's bits over those of the static code, for the second half of the first rows."""
    from softshare.codec.adaptive import encode_tensor

    rows, cols = matrix_shape(shape)
    wanted = min(SAMPLE.stop, max(SAMPLE.start, len(indices) // 128))
    half = max(1, min(wanted // cols, rows) // 2) if rows > 1 else 0
    size = half * cols if half else min(wanted, len(indices)) // 2
    lengths = []
    for part in (indices[:size], indices[: 2 * size]):
        own = (len(part) // cols, *shape[1:]) if half else (len(part),)
        lengths.append(
            len(encode_tensor(part, own, n_values, max(1, int(np.count_nonzero(part))), len(indices) > FAST_ABOVE))
        )
    second = indices[size : 2 * size]
    if not len(second):
        return 1.0
    totals = choice.counts.sum(1, keepdims=True)
    cost = np.log2(np.maximum(totals, 1) / np.maximum(choice.counts, totals / SLOTS))
    at = np.arange(size, 2 * size)
    place = at // cols if choice.axis == BY_ROW else at % cols if choice.axis == BY_COLUMN else np.zeros_like(at)
    bits = float(cost[choice.classes[place], second].sum())
    return 8 * (lengths[1] - lengths[0]) / max(1.0, bits)


def encode_rest(
    octets: Bytes,  # (n, itemsize), at least one number
    is_float: bool,
    shape: tuple[int, int],  # of the matrix
    speed: Speed,
    run: Run = one_by_one,
    lossless: bool = False,  # whether the file has no other tensors
) -> Section:
    """The best code by byte plane of a tensor that is not shared."""
    from softshare.codec import planes
    from softshare.codec.static import planes as static_planes

    n, itemsize = octets.shape
    if n < (min(LOSSLESS_FROM, STATIC_FROM) if lossless else STATIC_FROM):
        return Section(planes.encode_planes(octets))
    static = Section(static_planes.encode(octets, shape, is_float, lanes_for(speed), run), static=True)
    if speed == "fastest":
        return static
    if speed == "balanced":  # the adaptive coder learns on one part and is measured on the next
        size = min(SAMPLE.start, n // 8) if lossless else SAMPLE.start
        half, both = (len(planes.encode_planes(octets[: k * size])) for k in (1, 2))
        steps_saved = (steps.PLANE_BYTE - steps.STATIC) * itemsize * n
        worth = LOSSLESS_GAIN * itemsize * n if lossless else worth_of(steps_saved)
        if len(static) <= (both - half) * n / size + worth:
            return static
    adaptive = Section(planes.encode_planes(octets))
    return min(adaptive, static, key=len)
