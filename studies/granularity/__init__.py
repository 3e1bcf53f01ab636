"""docs/studies/granularity.md: fine-grained and shared experts and Muon at one active size, predicted and measured."""
