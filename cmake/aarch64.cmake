# For a try on another machine: cross-compiles with Debian's g++-aarch64-linux-gnu, and runs the tests under qemu-user.
#
#   cmake -S . -B build/aarch64 -G Ninja -DEXPLSCHED_TESTS=ON --toolchain cmake/aarch64.cmake
#   cmake --build build/aarch64 && ctest --test-dir build/aarch64
#
# Tests that start the manager themselves need the kernel to know qemu (Debian package qemu-user-binfmt).
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64 -L /usr/aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH /usr/aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE BOTH)
# Of CUDA only the headers: compiler and runtime are those of the building machine.
foreach(part NVCC CUDART_SHARED CUDART_STATIC)
  set(Cuda_${part} OFF CACHE STRING "")
endforeach()
