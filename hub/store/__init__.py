"""Stores of releases: a local folder or the Hub, behind one interface."""
