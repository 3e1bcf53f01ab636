"""Answers: named columns with a verdict, a best row, warnings and trust, as text, table, HTML, JSON and data frame.

`columns` is the registry of what a column is called and how its values are written; a question adds its own few lines.
"""
