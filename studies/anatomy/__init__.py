"""docs/studies/anatomy.md: what experts and their design gained in public pairs, beside what published laws say."""
