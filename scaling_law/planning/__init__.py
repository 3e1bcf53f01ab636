"""Questions to a fitted law: the best model for a budget, and what follows from it."""
