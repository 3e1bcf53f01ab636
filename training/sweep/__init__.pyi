# What the commands use: read by type checkers, and by lazy_loader, which imports a name when it is used.
from .engines import ENGINES as ENGINES
from .engines import find_statuses as find_statuses
from .engines import make_engine as make_engine
from .file import Sweep as Sweep
from .plan import plan_sweep as plan_sweep
from .run import stop_on_signals as stop_on_signals
from .run import write_configuration as write_configuration
from .status import status_table as status_table
