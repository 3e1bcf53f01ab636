"""docs/studies/paper.md: the tables of Ludziejewski et al. 2025 beside those of the law."""
