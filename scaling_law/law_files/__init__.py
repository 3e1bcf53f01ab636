"""Laws as files and as Hub repositories with cards: `serialization.save_law`, `load_law`, `push_law`."""
