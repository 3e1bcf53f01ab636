"""docs/studies/crossing.md: where experts begin to pay, measured on a sweep of small models and asked of laws."""
