# The CUDA toolkit's headers, and its compiler and runtime where they are. No driver and no GPU is needed.
#
# Looked for in this order: CUDA_ROOT, the PyPI wheels (nvidia-cuda-nvcc and what it needs) of the Python that PATH or .venv
# gives, the toolkit of the nvcc on PATH, /usr/local/cuda.
#
# Sets Cuda_FOUND, Cuda_INCLUDE_DIR, Cuda_VERSION (such as 13050); the target Cuda::headers; and, where present, Cuda_NVCC, Cuda_CUDART_SHARED and
# Cuda_CUDART_STATIC.

set(_cuda_hints "")
if(CUDA_ROOT)
  list(APPEND _cuda_hints ${CUDA_ROOT})
endif()

file(GLOB _cuda_wheels ${PROJECT_SOURCE_DIR}/.venv/lib/python3*/site-packages/nvidia/cu1[3-9])
list(APPEND _cuda_hints ${_cuda_wheels})

# The nvcc on PATH may be a script or a link that says nothing about where the toolkit lies: ask it.
find_program(_cuda_nvcc_on_path nvcc)
mark_as_advanced(_cuda_nvcc_on_path)
if(_cuda_nvcc_on_path)
  execute_process(COMMAND ${_cuda_nvcc_on_path} --dryrun -x cu /dev/null OUTPUT_VARIABLE _cuda_said
    ERROR_VARIABLE _cuda_said)
  if(_cuda_said MATCHES "_HERE_=([^\r\n]*)")
    get_filename_component(_cuda_top "${CMAKE_MATCH_1}/.." REALPATH)
    list(APPEND _cuda_hints ${_cuda_top})
  endif()
endif()
list(APPEND _cuda_hints /usr/local/cuda)

find_path(Cuda_INCLUDE_DIR cudaTypedefs.h HINTS ${_cuda_hints} PATH_SUFFIXES include NO_DEFAULT_PATH)
mark_as_advanced(Cuda_INCLUDE_DIR)
if(Cuda_INCLUDE_DIR)
  file(STRINGS ${Cuda_INCLUDE_DIR}/cuda.h Cuda_VERSION REGEX "^#define CUDA_VERSION [0-9]+")
  string(REGEX REPLACE ".* " "" Cuda_VERSION "${Cuda_VERSION}")
  # All parts from one toolkit: its headers, compiler and runtime belong together.
  get_filename_component(_cuda_top ${Cuda_INCLUDE_DIR} DIRECTORY)
  find_program(Cuda_NVCC nvcc PATHS ${_cuda_top}/bin NO_DEFAULT_PATH)
  find_file(Cuda_CUDART_SHARED NAMES libcudart.so.13 PATHS ${_cuda_top}/lib ${_cuda_top}/lib64 NO_DEFAULT_PATH)
  find_file(Cuda_CUDART_STATIC NAMES libcudart_static.a PATHS ${_cuda_top}/lib ${_cuda_top}/lib64 NO_DEFAULT_PATH)
  mark_as_advanced(Cuda_NVCC Cuda_CUDART_SHARED Cuda_CUDART_STATIC)
  if(NOT TARGET Cuda::headers)
    add_library(Cuda::headers INTERFACE IMPORTED GLOBAL)
    target_include_directories(Cuda::headers SYSTEM INTERFACE ${Cuda_INCLUDE_DIR})
  endif()
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Cuda REQUIRED_VARS Cuda_INCLUDE_DIR
  REASON_FAILURE_MESSAGE "no cudaTypedefs.h: set CUDA_ROOT, or pip install nvidia-cuda-runtime into .venv")
