"""An emulator of the PTX that GPU kernels are compiled to: `emulator.Emulator` runs launches of them without a GPU.

text.py reads PTX. kinds.py says what bits mean. table.py holds one declaration per opcode; arithmetic.py, moves.py,
accesses.py, warps.py, matrices.py and warpgroups.py make them. threads.py says where a thread belongs, memory.py and
races.py are the memory spaces and who touched what, copies.py and warpgroup_queue.py what runs beside the threads.
machine.py runs the threads. docs/gpu.md says what the emulator shows and what it does not.
"""
