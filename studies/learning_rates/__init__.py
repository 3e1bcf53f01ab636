"""Best learning rates of other labs' grids as one law, and how far labs lie apart."""
