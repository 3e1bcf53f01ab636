"""docs/studies/evidence.md: laws on the runs of other labs. The points, derived of public tables, lie here."""
