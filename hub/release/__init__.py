"""Pushing and pulling runs, the index and the cards of a sweep."""
