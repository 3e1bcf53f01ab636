from scaling_law.commands.release import app

if __name__ == "__main__":
    app()
