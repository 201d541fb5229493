"""Accelerators by their published figures."""

from __future__ import annotations

from dataclasses import dataclass

GIB = 2**30
LANES = 128  # width of a TPU's vector register: sides of the kernels' matrices and blocks are multiples of it


@dataclass(frozen=True)
class Chip:
    """hbm: bytes of memory that a program can use. peak: bfloat16 FLOP/s of dense matrix products. bandwidth: of
    memory, bytes/s. clock: cycles/s, to convert the compiler's estimates; None where there are none. link: bytes/s in
    one direction between the devices of a node; None where it is not needed."""

    name: str
    hbm: float
    peak: float | None
    bandwidth: float | None
    clock: float | None
    link: float | None = None


# TPUs: FLOP/s and bandwidth from cloud.google.com/tpu/docs (pages "TPU v5e", "TPU v5p", "TPU v6e"; 16, 95 and 32 GB);
# hbm is the limit that the compiler of libtpu 0.0.42 prints. The clocks convert the compiler's cycles into seconds.
# GPUs: NVIDIA's data sheets (H100 SXM5, H200 SXM, B200, A100 80GB SXM; FLOP/s without sparsity), with
# GB as 10⁹ bytes. Their link is half of the sheets' NVLink bandwidth (600, 900 and 1800 GB/s), which counts both
# directions.
CHIPS = {
    chip.name: chip
    for chip in (
        Chip("v5e", 15.75 * GIB, 197e12, 819e9, 1.5e9),
        Chip("v5p", 95.74 * GIB, 459e12, 2765e9, 1.75e9),
        Chip("v6e", 31.25 * GIB, 918e12, 1640e9, 1.75e9),
        Chip("A100", 80e9, 312e12, 2039e9, None, 300e9),
        Chip("H100", 80e9, 989e12, 3350e9, None, 450e9),
        Chip("H200", 141e9, 989e12, 4800e9, None, 450e9),
        Chip("B200", 180e9, 2250e12, 7700e9, None, 900e9),
    )
}
_TPU_KINDS = {"TPU v5 lite": "v5e", "TPU v5": "v5p", "TPU v5p": "v5p", "TPU v6 lite": "v6e"}


def chip_of(kind: str) -> Chip | None:
    """The chip that JAX calls `kind` (device_kind), e.g. "TPU v5 lite" or "NVIDIA H100 80GB HBM3"; None if unknown."""
    name = _TPU_KINDS.get(kind, kind)
    return next((chip for chip in CHIPS.values() if chip.name in name), None)
