"""docs/studies/models.md: released models in the terms of the published law."""
