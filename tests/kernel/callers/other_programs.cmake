# Programs that have nothing to do with CUDA must not notice that the interposer is preloaded.

if(TARGET explsched_intercept)
  function(test_preloaded name expected)
    add_test(NAME preloaded.${name} COMMAND ${ARGN})
    set_tests_properties(preloaded.${name} PROPERTIES TIMEOUT 60
      ENVIRONMENT "LD_PRELOAD=$<TARGET_FILE:explsched_intercept>" PASS_REGULAR_EXPRESSION "${expected}"
      FAIL_REGULAR_EXPRESSION "ld\\.so")
  endfunction()

  test_preloaded(python "^55\n$" ${Python3_EXECUTABLE} -c "import ctypes, socket, ssl\nprint(sum(range(11)))")
  find_program(BASH bash)
  test_preloaded(bash "^a b\n$" ${BASH} -c "echo $(echo a) $(echo b | cat)")
  find_program(GIT git)
  if(GIT)
    test_preloaded(git "^git version" ${GIT} --version)
  endif()
  # A setuid program: ld.so drops what is preloaded by path, unless the caller is root already.
  find_program(MOUNT mount)
  if(MOUNT)
    test_preloaded(setuid_program "^mount from" ${MOUNT} --version)
  endif()
  # A static program has no loader that could preload anything.
  add_executable(static_program static_program.c)
  target_link_options(static_program PRIVATE -static)
  test_preloaded(static_program "^static\n$" static_program)
endif()
