# Run with cmake -P by the test installed_consumer. Ends with an error at the first step that fails.

function(step what)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE failed OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(failed)
    message(FATAL_ERROR "${what} failed:\n${output}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

file(REMOVE_RECURSE "${WORK}")
step("install" ${CMAKE_COMMAND} --install "${BUILD}" --prefix "${WORK}/prefix")
# Nothing of the build tree may be needed: the consumer sees the prefix alone.
step("configure" ${CMAKE_COMMAND} -S "${PROJECT}" -B "${WORK}/build" -G "${GENERATOR}" -DCMAKE_CXX_COMPILER=${COMPILER}
     "-DCMAKE_PREFIX_PATH=${WORK}/prefix;${PREFIXES}")
step("build" ${CMAKE_COMMAND} --build "${WORK}/build")
step("run" "${WORK}/build/consumer")
if(NOT output MATCHES "trireme ${VERSION}")
  message(FATAL_ERROR "the consumer printed: ${output}")
endif()
file(GLOB_RECURSE installed "${WORK}/prefix/lib*/cmake/trireme/*.cmake")
foreach(file IN LISTS installed)
  file(STRINGS "${file}" leak REGEX "${BUILD}/src|${BUILD}/generated")
  if(leak)
    message(FATAL_ERROR "${file} names the build tree: ${leak}")
  endif()
endforeach()
message(STATUS "${output}")
