# Programs compiled by nvcc on the runtime double, and NVIDIA's own runtime up to the point where it refuses the fake driver.

# runtime: the library that has the runtime's functions.
function(add_nvcc_caller name)
  set(object ${CMAKE_CURRENT_BINARY_DIR}/${name}.o)
  set(source ${CMAKE_CURRENT_SOURCE_DIR}/by_runtime.cu)
  add_custom_command(OUTPUT ${object} DEPENDS ${source} caller.hpp
    COMMAND ${Cuda_NVCC} -ccbin ${CMAKE_CXX_COMPILER} -std=c++17 -arch=sm_90 -I${PROJECT_SOURCE_DIR} ${ARGN}
      -c ${source} -o ${object}
    COMMENT "nvcc ${name}" VERBATIM)
  add_executable(${name} ${object})
  set_target_properties(${name} PROPERTIES LINKER_LANGUAGE CXX)
  target_link_libraries(${name} PRIVATE caller fakecudart)
endfunction()

if(Cuda_NVCC)
  add_nvcc_caller(by_runtime)
  test_caller(nvcc COMMAND by_runtime)
  add_nvcc_caller(by_runtime_per_thread --default-stream per-thread)
  test_caller(nvcc_per_thread COMMAND by_runtime_per_thread)
else()
  message(NOTICE "kernel tests: programs compiled by nvcc are skipped, there is no nvcc beside ${Cuda_INCLUDE_DIR}")
endif()

function(test_resolution name runtime)
  add_executable(${name} resolution.cpp)
  target_link_libraries(${name} PRIVATE caller ${runtime} Threads::Threads rt)
  set(calls ${CMAKE_CURRENT_BINARY_DIR}/calls-${name}.txt)
  test_caller(${name} COMMAND ${name} ENV FAKECUDA_CALLS=${calls})
  # Both variants write the same file.
  set_tests_properties(bare.${name} PROPERTIES RESOURCE_LOCK ${name})
  if(TEST caught.${name})
    set_tests_properties(caught.${name} PROPERTIES RESOURCE_LOCK ${name})
  endif()
endfunction()

foreach(kind IN ITEMS SHARED STATIC)
  string(TOLOWER ${kind} lower)
  if(Cuda_CUDART_${kind})
    test_resolution(resolution_${lower}_runtime ${Cuda_CUDART_${kind}})
  else()
    message(NOTICE "kernel tests: NVIDIA's ${lower} runtime is skipped, it is not beside ${Cuda_INCLUDE_DIR}")
  endif()
endforeach()
