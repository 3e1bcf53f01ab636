# What commands use: read by type checkers, and by lazy_loader, which imports a name when it is used.
from .grid import Grid as Grid
from .grid import measure_grid as measure_grid
