"""`train.py` with FSDP2 on CPU processes (gloo), which Accelerate would train with DDP without saying so.

For tests only: the distributed type is set to what several GPUs would have, before the Accelerator is made.
"""

import sys

from accelerate import PartialState
from accelerate.utils import DistributedType

from training.run.main import main

if __name__ == "__main__":
    PartialState(cpu=True).distributed_type = DistributedType.MULTI_GPU
    sys.exit(main())
