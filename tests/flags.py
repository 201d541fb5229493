"""Flags of XLA for tests, in which compilation takes most of the time. Import it before jax."""

from importlib.metadata import version

# LLVM does not optimise, and a program's code is emitted by one thread, as there are as many test processes as cores;
# XLA of jaxlib 0.10 has two emitters of fusions for CPUs, of which the older is faster (a flag that it does not know
# ends a process).
FAST = "--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1"
if version("jaxlib").startswith("0.10."):
    FAST += " --xla_cpu_use_fusion_emitters=false"


def fake_devices(count: int) -> str:
    """So many CPU devices, and programs that compile fast."""
    return f"--xla_force_host_platform_device_count={count} {FAST}"
