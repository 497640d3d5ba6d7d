"""How many cores JAX may use: said before it is imported, as devices, cores of the process, and XLA's own threads."""

import os

cores = 1


def set_cores(several: int) -> None:
    global cores
    cores = several
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:several])
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={several}"
    os.environ["JAX_PLATFORMS"] = "cpu"
