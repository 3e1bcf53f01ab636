"""Cases of the GPU kit that fail in each way, in a module that is quickly imported by their processes."""

import os
import signal
import time

from benchmarks.gpu import kit


def behave(options, work, keep):
    """A measurement that does what its options say."""
    with open(work / "calls", "a") as file:
        file.write(options["do"] + "\n")
    keep(before=1)
    match options["do"]:
        case "raise":
            raise MemoryError("no\nroom " * 100)
        case "exit":
            if not os.fork():  # what it started outlives it, and holds the pipe
                time.sleep(40)
            os._exit(5)
        case "die":
            os.kill(os.getpid(), signal.SIGKILL)
        case "skip":
            raise kit.Skipped("liger_kernel is not installed")
        case "sleep":
            time.sleep(60)
    keep(value=options.get("value"))
