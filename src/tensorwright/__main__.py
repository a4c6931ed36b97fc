"""`python -m tensorwright` is the command `tensorwright`."""

from tensorwright.entry import tensorwright

if __name__ == "__main__":
    tensorwright()
