# What the package offers: read by type checkers, and by lazy_loader, which imports a name when it is used.
from .configuration.arguments import ConfigurationError as ConfigurationError
from .configuration.arguments import TrainingArguments as TrainingArguments
from .configuration.reading import from_dict as from_dict
from .configuration.reading import parse_command_line as parse_command_line
from .configuration.schedule import Branch as Branch
from .configuration.schedule import Schedule as Schedule
from .data.text import TextSource as TextSource
from .data.tokenizer import load_tokenizer as load_tokenizer
from .data.tokenizer import train_tokenizer as train_tokenizer
from .final_loss_callback import FinalLossCallback as FinalLossCallback
from .run.main import Run as Run
from .sweep.file import Sweep as Sweep
from .sweep.plan import plan_sweep as plan_sweep
from .sweep.run import run_sweep as run_sweep
