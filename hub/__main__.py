"""`python -m hub push|pull|runs|repair`: releases from the shell."""

from hub.cli import main

if __name__ == "__main__":
    main()
