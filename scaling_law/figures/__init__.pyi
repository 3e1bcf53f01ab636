from . import drawing as drawing
from . import law_figures as law_figures
from .law_figures import isoflop as isoflop
from .law_figures import predicted_against_observed as predicted_against_observed
