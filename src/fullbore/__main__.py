"""``python -m fullbore``."""

from fullbore.cli.main import main

if __name__ == "__main__":
    main()
