"""docs/studies/models.md again, from models.json.

python -m studies.models scaling_law/explorer/models.json docs/studies/models.md
"""

import sys

from studies.models.study import write_page

write_page(*sys.argv[1:])
