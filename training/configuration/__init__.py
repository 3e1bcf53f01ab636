"""What a run is: its arguments, presets, and the schedule that follows from them.

`class_counts`, which takes torch, is imported when it is used.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
