"""`python -m tensorwright` is the command `tensorwright`."""

from tensorwright.runtime.cli import main

if __name__ == "__main__":
    main()
