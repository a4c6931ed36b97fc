"""Says which GPUs the ranks of one machine have: one each."""

from __future__ import annotations

from tensorwright.errors import InvalidOptionError


def devices_here(asked: str | None, here: int) -> tuple[int, ...]:
    """Returns the number of the GPU of each rank of this machine, in the order of ranks.

    asked: the option devices, which was checked; None means 0, 1 and so on. here: how many ranks this machine has.
    Raises InvalidOptionError for another number of GPUs.
    """
    if asked is None:
        return tuple(range(here))
    numbers = tuple(int(number) for number in asked.split(","))
    if len(numbers) != here:
        ranks = f"{here} ranks, with a GPU each" if here > 1 else "one rank"
        raise InvalidOptionError(f"devices={asked!r} names {len(numbers)} GPUs, and on this machine run {ranks}")
    return numbers
