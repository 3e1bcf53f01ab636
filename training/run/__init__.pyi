# What commands use: read by type checkers, and by lazy_loader, which imports a name when it is used.
from . import main as main
from .grid import Grid as Grid
from .grid import measure_grid as measure_grid
from .inputs import held_out_tokens as held_out_tokens
from .inputs import resolve_arguments as resolve_arguments
from .inputs import training_tokens as training_tokens
