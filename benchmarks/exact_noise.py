"""How long exact noise takes: discrete Gaussian numbers from the operating system's generator, on one core.

python -m benchmarks.exact_noise [numbers]
"""

import statistics
import sys
import time
from collections.abc import Callable

import numpy as np

from tacit.estimation.messages import SecureSource
from tacit.privacy.mechanisms.discrete_gaussian import sample, secure_words

LIMIT = 1.0  # seconds for a million numbers with a standard deviation of 2^20 steps
REPEATS = 5


def seconds(work: Callable[[], object]) -> float:
    """Processor time, the median of several: it has one thread, and others may share the machine."""
    taken = []
    for _ in range(REPEATS):
        began = time.process_time()
        work()
        taken.append(time.process_time() - began)
    return statistics.median(taken)


def main() -> int:
    size = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    floats = seconds(lambda: SecureSource().standard_normal(size))
    sys.stdout.write(f"{size:,} numbers, processor time, median of {REPEATS}\n")
    sys.stdout.write(f"Gaussian on floats: {floats:.3f} s\n")
    slow = False
    for log_std in (5, 20, 26):
        taken = seconds(lambda log_std=log_std: sample(size, log_std, secure_words))
        drawn = sample(size, log_std, secure_words)
        ratio = float(np.std(drawn)) / 2**log_std
        sys.stdout.write(f"exact, std 2^{log_std}: {taken:.3f} s; measured std / 2^{log_std} = {ratio:.4f}\n")
        slow |= log_std == 20 and taken * 1_000_000 / size > LIMIT
    if slow:
        sys.stdout.write(f"above {LIMIT:g} s a million at 2^20\n")
    return int(slow)


if __name__ == "__main__":
    sys.exit(main())
