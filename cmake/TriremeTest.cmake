# The helpers that tests are written with.
#
#   trireme_test(NAME SOURCES x_test.cpp DEPENDS rooms.. [LIBRARIES ..] [TORCH] [DATA]
#                [RANKS 1 2 3 4] [LABELS unit|mpi|scenario|fault|slow|gpu] [TIMEOUT seconds] [ARGUMENTS ..])
#     A GoogleTest program, build/<preset>/tests/NAME. Without RANKS it is one ctest called NAME; with RANKS it is run
#     by mpirun once per rank count, as NAME.np1, NAME.np2, ... Default labels: unit, or mpi with RANKS.
#     Default TIMEOUT 60: a watchdog inside the program ends it at nine tenths of that and names rank and test.
#     DATA defines TRIREME_TEST_DATA, the tests/ folder; support/golden.hpp gives the same without the definition.
#   trireme_scenario(NAME COMMAND program arguments.. [LABELS ..] [TIMEOUT seconds] [PROCESSORS n] [SERIAL])
#     Any command, run in a fresh folder of its own. Its environment has TRIREME_BIN (the trireme program),
#     TRIREME_MPIRUN (a command line that takes -np N next), TRIREME_TEST_DATA, TRIREME_PYTHON. Label scenario.
#
# Exit code 77 means skipped: a GoogleTest program returns it when every test that it ran skipped itself.

include_guard(GLOBAL)

# How a command is started on N ranks. The tests oversubscribe the machine and several run at once, so ranks are not
# bound to cores (two jobs would share core 0) and yield while they wait.
set(TRIREME_TEST_MPIRUN "${MPIEXEC_EXECUTABLE}")
set(TRIREME_TEST_ENVIRONMENT "TRIREME_TEST_DATA=${PROJECT_SOURCE_DIR}/tests" OMP_NUM_THREADS=1 GTEST_COLOR=no)
if(TRIREME_MPI_FLAVOUR STREQUAL "openmpi")
  list(APPEND TRIREME_TEST_MPIRUN --oversubscribe --bind-to none)
  execute_process(COMMAND id -u OUTPUT_VARIABLE trireme_user OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  if(trireme_user STREQUAL "0")
    list(APPEND TRIREME_TEST_MPIRUN --allow-run-as-root)
  endif()
  list(APPEND TRIREME_TEST_ENVIRONMENT
       # Containers often forbid process_vm_readv; shared memory alone is enough for tests, and always allowed.
       OMPI_MCA_btl_vader_single_copy_mechanism=none
       OMPI_MCA_mpi_yield_when_idle=1
       # A test stays on this machine: no interface is probed, no daemon looks for another host.
       OMPI_MCA_btl=self,vader OMPI_MCA_pml=ob1 OMPI_MCA_oob_tcp_if_include=lo
       # mpirun's one-line summary of which rank failed is kept; its advice on how to repeat a message is not.
       OMPI_MCA_orte_base_help_aggregate=1)
endif()

# A Python for the tests that read our files as a user would; the first that has what they need wins, since a machine's
# `python3` is not always the one that Debian's python3-h5py belongs to.
function(trireme_find_python)
  if(NOT TRIREME_PYTHON)
    set(chosen "")
    find_program(path_python python3 NO_CACHE)
    foreach(candidate "${path_python}" /usr/bin/python3)
      if(candidate AND NOT chosen)
        execute_process(COMMAND "${candidate}" -c "import h5py, numpy" RESULT_VARIABLE failed OUTPUT_QUIET ERROR_QUIET)
        if(NOT failed)
          set(chosen "${candidate}")
        endif()
      endif()
    endforeach()
    if(NOT chosen)
      set(chosen "${path_python}")
    endif()
    set(TRIREME_PYTHON "${chosen}" CACHE FILEPATH "Python 3 for tests, with h5py where there is one" FORCE)
  endif()
endfunction()
trireme_find_python()

# What the tests share: a main, a watchdog, temporary folders, the way to the golden data.
function(trireme_test_support)
  if(TARGET trireme_test_main)
    return()
  endif()
  set(support "${PROJECT_SOURCE_DIR}/tests/support")
  foreach(kind serial mpi)
    set(target trireme_test_main)
    if(kind STREQUAL "mpi")
      set(target trireme_test_main_mpi)
    endif()
    add_library(${target} STATIC "${support}/main.cpp" "${support}/watchdog.cpp" "${support}/${kind}/world.cpp")
    trireme_compile_settings(${target})
    target_include_directories(${target} PUBLIC "${PROJECT_SOURCE_DIR}/tests")
    target_link_libraries(${target} PUBLIC trireme_dep::gtest)
    if(kind STREQUAL "mpi")
      target_link_libraries(${target} PUBLIC trireme_dep::MPI)
    endif()
  endforeach()
endfunction()

function(trireme_test name)
  cmake_parse_arguments(TEST "TORCH;DATA" "TIMEOUT" "SOURCES;DEPENDS;LIBRARIES;RANKS;LABELS;ARGUMENTS" ${ARGN})
  if(TEST_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "trireme_test(${name}): what is '${TEST_UNPARSED_ARGUMENTS}'?")
  endif()
  trireme_left_out(absent "Test ${name}" SOURCES ${TEST_SOURCES} ROOMS ${TEST_DEPENDS})
  if(absent)
    return()
  endif()
  if(NOT TEST_TIMEOUT)
    set(TEST_TIMEOUT 60)
  endif()
  if(NOT TEST_LABELS)
    set(TEST_LABELS unit)
    if(TEST_RANKS)
      set(TEST_LABELS mpi)
    endif()
  endif()
  trireme_test_support()

  set(target test_${name})
  add_executable(${target} ${TEST_SOURCES})
  set_target_properties(${target} PROPERTIES OUTPUT_NAME ${name} RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/tests")
  trireme_compile_settings(${target})
  target_include_directories(${target} PRIVATE "${PROJECT_SOURCE_DIR}/tests" "${PROJECT_SOURCE_DIR}/src")
  foreach(room IN LISTS TEST_DEPENDS)
    target_link_libraries(${target} PRIVATE trireme_${room})
  endforeach()
  trireme_link(${target} PRIVATE ${TEST_LIBRARIES})
  if(TEST_TORCH)
    trireme_use_torch(${target} PRIVATE)
  endif()
  if(TEST_DATA)
    target_compile_definitions(${target} PRIVATE TRIREME_TEST_DATA="${PROJECT_SOURCE_DIR}/tests")
  endif()

  set(environment ${TRIREME_TEST_ENVIRONMENT} "TRIREME_TEST_TIMEOUT=${TEST_TIMEOUT}"
      "TRIREME_BIN=${CMAKE_BINARY_DIR}/bin/trireme" "TRIREME_PYTHON=${TRIREME_PYTHON}")
  if(TEST_RANKS)
    target_link_libraries(${target} PRIVATE trireme_test_main_mpi)
    foreach(ranks IN LISTS TEST_RANKS)
      add_test(NAME ${name}.np${ranks}
               COMMAND ${TRIREME_TEST_MPIRUN} -np ${ranks} $<TARGET_FILE:${target}> ${TEST_ARGUMENTS})
      set(processors ${ranks})
      if(processors GREATER 2)
        set(processors 2)
      endif()
      set_tests_properties(${name}.np${ranks} PROPERTIES PROCESSORS ${processors} TIMEOUT ${TEST_TIMEOUT}
                           LABELS "${TEST_LABELS}" SKIP_RETURN_CODE 77 ENVIRONMENT "${environment}")
    endforeach()
  else()
    target_link_libraries(${target} PRIVATE trireme_test_main)
    add_test(NAME ${name} COMMAND ${target} ${TEST_ARGUMENTS})
    set_tests_properties(${name} PROPERTIES TIMEOUT ${TEST_TIMEOUT} LABELS "${TEST_LABELS}" SKIP_RETURN_CODE 77
                         ENVIRONMENT "${environment}")
  endif()
endfunction()

function(trireme_scenario name)
  cmake_parse_arguments(TEST "SERIAL" "TIMEOUT;PROCESSORS" "COMMAND;LABELS" ${ARGN})
  if(TEST_UNPARSED_ARGUMENTS OR NOT TEST_COMMAND)
    message(FATAL_ERROR "trireme_scenario(${name}): needs COMMAND; what is '${TEST_UNPARSED_ARGUMENTS}'?")
  endif()
  if(NOT TEST_TIMEOUT)
    set(TEST_TIMEOUT 300)
  endif()
  if(NOT TEST_LABELS)
    set(TEST_LABELS scenario)
  endif()
  if(NOT TEST_PROCESSORS)
    set(TEST_PROCESSORS 2)
  endif()
  list(JOIN TRIREME_TEST_MPIRUN " " mpirun)
  set(folder "${CMAKE_BINARY_DIR}/tests/run/${name}")
  file(MAKE_DIRECTORY "${folder}")
  add_test(NAME ${name} COMMAND ${TEST_COMMAND} WORKING_DIRECTORY "${folder}")
  set_tests_properties(${name} PROPERTIES TIMEOUT ${TEST_TIMEOUT} LABELS "${TEST_LABELS}" SKIP_RETURN_CODE 77
    PROCESSORS ${TEST_PROCESSORS}
    ENVIRONMENT "${TRIREME_TEST_ENVIRONMENT};TRIREME_BIN=${CMAKE_BINARY_DIR}/bin/trireme;TRIREME_MPIRUN=${mpirun};TRIREME_PYTHON=${TRIREME_PYTHON};TRIREME_TEST_TIMEOUT=${TEST_TIMEOUT}")
  if(TEST_SERIAL)
    set_tests_properties(${name} PROPERTIES RUN_SERIAL ON)
  endif()
endfunction()
