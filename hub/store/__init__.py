"""Where releases lie: a local folder or the Hub, behind one interface."""
