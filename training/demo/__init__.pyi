# What the command uses: read by type checkers, and by lazy_loader, which imports a name when it is used.
from .loop import Demo as Demo
from .scales import FAST as FAST
from .scales import FULL as FULL
