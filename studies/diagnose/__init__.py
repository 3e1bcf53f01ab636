"""docs/studies/diagnose.md: public runs judged by the others, as they are and at half their speed."""
