"""The whole loop on one machine, and what it shows."""
