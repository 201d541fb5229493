"""Accelerators by their published figures, and whether this machine lists a TPU."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

GIB = 2**30
LANES = 128  # width of a TPU's vector register: sides of the kernels' matrices and blocks are multiples of it


@dataclass(frozen=True)
class Chip:
    """What JAX calls a device. hbm: bytes of memory that a program can use. peak: bfloat16 FLOP/s of dense matrix
    products. bandwidth: of memory, bytes/s. link: bytes/s that leave it for the devices of its slice or node, over all
    links in one direction. network: the same for those of other slices or nodes. None where it is not known."""

    name: str
    hbm: float
    peak: float | None
    bandwidth: float | None
    link: float | None = None
    network: float | None = None


# TPUs: docs.cloud.google.com/tpu/docs, pages "TPU v5e", "TPU v5p", "TPU v6e" and "TPU7x (Ironwood)": FLOP/s; bandwidth;
# ICI, of v5p, v6e and TPU7x half of the "bidirectional" 1200, 800 and 1200 GB/s, of v5e its 1600 Gb/s; DCN 50 Gb/s for
# a chip of v5p, 100 of v6e and TPU7x, of v5e 6.4 Tb/s for the 256 chips of a pod. hbm is the limit that the compiler of
# libtpu 0.0.42 prints. A chip of TPU7x is two devices, each with half of 192 GiB, 2307 TFLOP/s, 7380 GB/s and links.
# GPUs: NVIDIA's data sheets (A100 80GB SXM, H100 SXM5, H200 SXM, HGX B200, HGX B300, GB200 NVL72; FLOP/s without
# sparsity), with GB as 10⁹ bytes. Their link is half of the sheets' NVLink bandwidth (600, 900 and 1800 GB/s), which
# counts both directions; their network is that of DGX systems: 200 Gb/s for each GPU of A100, 800 of B300, else 400.
CHIPS = {
    chip.name: chip
    for chip in (
        Chip("v5e", 15.75 * GIB, 197e12, 819e9, 200e9, 3.125e9),
        Chip("v5p", 95.74 * GIB, 459e12, 2765e9, 600e9, 6.25e9),
        Chip("v6e", 31.25 * GIB, 918e12, 1640e9, 400e9, 12.5e9),
        Chip("v7x", 94.75 * GIB, 1153.5e12, 3690e9, 300e9, 6.25e9),
        Chip("A100", 80e9, 312e12, 2039e9, 300e9, 25e9),
        Chip("H100", 80e9, 989e12, 3350e9, 450e9, 50e9),
        Chip("H200", 141e9, 989e12, 4800e9, 450e9, 50e9),
        Chip("GB200", 186e9, 2500e12, 8000e9, 900e9, 50e9),
        Chip("B200", 180e9, 2250e12, 7700e9, 900e9, 50e9),
        Chip("B300", 262.5e9, 2250e12, 7700e9, 900e9, 100e9),
    )
}
KINDS = {"TPU v5 lite": "v5e", "TPU v5": "v5p", "TPU v5p": "v5p", "TPU v6 lite": "v6e", "TPU7x": "v7x"}  # JAX's names


def chip_of(kind: str) -> Chip | None:
    """The chip that JAX calls `kind` (device_kind), e.g. "TPU v5 lite" or "NVIDIA H100 80GB HBM3"; None if unknown."""
    name = KINDS.get(kind, kind)
    return next((chip for chip in CHIPS.values() if chip.name in name), None)


def lists_tpu() -> bool:
    """Whether the operating system lists a TPU: nothing is started."""
    return any(any(Path("/dev").glob(pattern)) for pattern in ("accel[0-9]*", "vfio/[0-9]*"))
