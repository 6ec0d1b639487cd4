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
# The README's program is one that builds.
file(READ "${README}" readme)
string(FIND "${readme}" "#include <torch/torch.h>" begin)
string(SUBSTRING "${readme}" ${begin} -1 readme)
string(FIND "${readme}" "\n```" end)
string(SUBSTRING "${readme}" 0 ${end} example)
file(WRITE "${WORK}/readme.cpp" "${example}\n")
step("configure" ${CMAKE_COMMAND} -S "${PROJECT}" -B "${WORK}/build" "-DREADME=${WORK}/readme.cpp" -G "${GENERATOR}" -DCMAKE_CXX_COMPILER=${COMPILER}
     "-DCMAKE_PREFIX_PATH=${WORK}/prefix;${PREFIXES}")
step("build" ${CMAKE_COMMAND} --build "${WORK}/build")
step("run" "${WORK}/build/consumer")
if(NOT output MATCHES "trireme ${VERSION}")
  message(FATAL_ERROR "the consumer printed: ${output}")
endif()
step("run the README's program" "${WORK}/build/readme")
# A plug-in, built and loaded as its author would.
step("configure the plug-in" ${CMAKE_COMMAND} -S "${PLUGIN}" -B "${WORK}/plugin" -G "${GENERATOR}"
     -DCMAKE_CXX_COMPILER=${COMPILER} "-DCMAKE_PREFIX_PATH=${WORK}/prefix;${PREFIXES}")
step("build the plug-in" ${CMAKE_COMMAND} --build "${WORK}/plugin")
step("plan with the plug-in" "${WORK}/prefix/bin/trireme" plan "${PLUGIN}/gru.yaml" -n 2
     --set "model.plugin=${WORK}/plugin/libgru.so")
if(NOT output MATCHES "activations [(]by measurement[)]")
  message(FATAL_ERROR "the plan printed: ${output}")
endif()
file(GLOB_RECURSE installed "${WORK}/prefix/lib*/cmake/trireme/*.cmake")
foreach(file IN LISTS installed)
  file(STRINGS "${file}" leak REGEX "${BUILD}/src|${BUILD}/generated")
  if(leak)
    message(FATAL_ERROR "${file} names the build tree: ${leak}")
  endif()
endforeach()
message(STATUS "${output}")
