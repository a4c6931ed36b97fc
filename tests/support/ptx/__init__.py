"""An emulator of the PTX that GPU kernels are compiled to: `emulator.Emulator` runs launches of them, checked, without a GPU.

text.py reads PTX; kinds.py says what bits mean; table.py holds one declaration per opcode, which arithmetic.py, moves.py,
accesses.py, warps.py, matrices.py and warpgroups.py fill; memory.py and races.py are the memory spaces and who touched what;
copies.py are asynchronous copies, warpgroup_queue.py asynchronous products; machine.py runs the threads. docs/gpu.md says what this shows and what it does not.
"""
