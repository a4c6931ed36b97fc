# Compiles for aarch64 Linux on another machine, with the compilers that Debian's g++-aarch64-linux-gnu brings; and runs
# what was compiled, such as the tests, in qemu-aarch64 (qemu-user):
#   cmake -B build/arm64 --toolchain deploy/arm64/toolchain.cmake -DTENSORWRIGHT_PYTHON=OFF -DTENSORWRIGHT_TESTS=ON
# TENSORWRIGHT_ARM64_CPU is the processor that qemu is: "max" has all that qemu knows.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_FIND_ROOT_PATH /usr/aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(TENSORWRIGHT_ARM64_CPU max CACHE STRING "the processor that qemu-aarch64 is, as for its option -cpu")
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64 -cpu ${TENSORWRIGHT_ARM64_CPU} -L /usr/aarch64-linux-gnu)
