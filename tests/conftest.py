"""Settings for every test: nothing leaves the machine, and results do not depend on the number of cores."""

import os

os.environ.update(
    HF_HUB_OFFLINE="1",
    HF_HUB_DISABLE_TELEMETRY="1",
    HF_XET_TELEMETRY_ENABLED="0",
    HF_HUB_DISABLE_UPDATE_CHECK="1",
    HF_HUB_DISABLE_PROGRESS_BARS="1",
    TOKENIZERS_PARALLELISM="false",
    MPLBACKEND="agg",
)
os.environ.setdefault("OMP_NUM_THREADS", "2")
