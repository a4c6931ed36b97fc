"""Makes `python -m tensorwright` run the command `tensorwright`."""

from tensorwright.entry import tensorwright

if __name__ == "__main__":
    tensorwright()
