from training.sweep.cli import app

if __name__ == "__main__":
    app()
