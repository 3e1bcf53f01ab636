"""Formulas of the laws and the conditions they were fitted under; no input or output."""
