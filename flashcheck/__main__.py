"""``python -m flashcheck``."""

from flashcheck.cli import main

if __name__ == "__main__":
    main()
