# What imports torch: read by type checkers, and by lazy_loader, which imports it when it is used.
from . import class_counts as class_counts
