"""Run pytest and print the CPU seconds that it and its workers took: `make test`.

python -m tests.core_seconds MOST [options of pytest]
"""

import resource
import subprocess
import sys


def main() -> int:
    most, *options = sys.argv[1:]
    status = subprocess.run([sys.executable, "-m", "pytest", *options], check=False).returncode
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    # A busy or slower machine needs more, so this is no reason to fail.
    print(f"{usage.ru_utime + usage.ru_stime:.0f} core-seconds, to be at most {most}")
    return status


if __name__ == "__main__":
    sys.exit(main())
