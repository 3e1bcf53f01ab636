"""Studies of this repository: each computes the numbers of its page in `docs/studies` from the records beside it."""
