"""Flags of XLA for tests, in which compilation takes most of the time. Import it before jax."""

# LLVM does not optimise, fusions are emitted by the older and faster of XLA's two emitters for CPUs, and a program's
# code by one thread, as there are as many test processes as cores.
FAST = " ".join(
    (
        "--xla_backend_optimization_level=0",
        "--xla_cpu_use_fusion_emitters=false",
        "--xla_cpu_parallel_codegen_split_count=1",
    )
)


def fake_devices(count: int) -> str:
    """So many CPU devices, and programs that compile fast."""
    return f"--xla_force_host_platform_device_count={count} {FAST}"
