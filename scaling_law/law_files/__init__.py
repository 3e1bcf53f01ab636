"""Laws as files and as Hub repositories, with their cards."""
