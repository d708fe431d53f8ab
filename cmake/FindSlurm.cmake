# Slurm's headers and library, of one installation: that which the environment variable EXPLSCHED_SLURM_PREFIX names, and
# no other, or where CMake looks (CMAKE_PREFIX_PATH, the system). Not cached: Slurm loads only plugins of exactly its own
# release, and a build directory that remembers one prefix would go on with it under another.
set(_slurm_only "")
if(NOT "$ENV{EXPLSCHED_SLURM_PREFIX}" STREQUAL "")
  set(_slurm_only PATHS "$ENV{EXPLSCHED_SLURM_PREFIX}" PATH_SUFFIXES include lib lib64 NO_DEFAULT_PATH)
endif()
find_path(Slurm_INCLUDE_DIR slurm/spank.h ${_slurm_only} NO_CACHE)
find_library(Slurm_LIBRARY slurm ${_slurm_only} NO_CACHE)
if(_slurm_only AND NOT (Slurm_INCLUDE_DIR AND Slurm_LIBRARY))
  message(FATAL_ERROR "EXPLSCHED_SLURM_PREFIX is $ENV{EXPLSCHED_SLURM_PREFIX}, but there is no include/slurm/spank.h with lib/libslurm.so")
endif()
