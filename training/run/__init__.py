"""One training run: `main` has the loop, `inputs` what it reads, `model` what it trains, `step` one update, `progress`
what is remembered from step to step, `results` the model and record. Nothing is imported before it is used."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
