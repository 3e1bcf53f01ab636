"""`python -m scaling_law`: the command `scaling-law`."""

from scaling_law.commands.cli import main

if __name__ == "__main__":
    main()
