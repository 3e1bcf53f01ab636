"""What a run is: its arguments, presets, and the schedule that follows from them."""
