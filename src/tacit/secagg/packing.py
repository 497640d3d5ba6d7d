"""Integers modulo 2^b, packed without gaps: b bits each, the lowest bit first."""

import numpy as np

from tacit.errors import TacitError


def residues(values: np.ndarray, bits: int) -> np.ndarray:
    """Any integers, as numbers of 0 to 2^b - 1."""
    if values.dtype.kind not in "iu":
        raise TacitError(f"only integers can be summed modulo 2^{bits}, not {values.dtype}: round them first")
    return (values & ((1 << bits) - 1)).astype(np.uint32)


def add_signed(total: np.ndarray, mask: np.ndarray, plus: bool) -> np.ndarray:
    """Modulo 2^32, and so modulo every smaller power of two."""
    return total + mask if plus else total - mask


def packed_bytes(size: int, bits: int) -> int:
    return (size * bits + 7) // 8


def pack(values: np.ndarray, bits: int) -> bytes:
    """`values` are residues of 32 bits."""
    if bits == 32:
        return values.astype("<u4").tobytes()
    single = np.unpackbits(values.astype("<u4").view(np.uint8).reshape(-1, 4), axis=1, count=bits, bitorder="little")
    return np.packbits(single, bitorder="little").tobytes()


def unpack(body: bytes, size: int, bits: int) -> np.ndarray | None:
    """What was packed; None if nothing of this size packs to these bytes."""
    if len(body) != packed_bytes(size, bits):
        return None
    if bits == 32:
        return np.frombuffer(body, "<u4")
    single = np.unpackbits(np.frombuffer(body, np.uint8), bitorder="little")
    if single[size * bits :].any():
        return None
    wide = np.zeros((size, 32), np.uint8)
    wide[:, :bits] = single[: size * bits].reshape(size, bits)
    return np.packbits(wide, axis=1, bitorder="little").view("<u4").reshape(size)
