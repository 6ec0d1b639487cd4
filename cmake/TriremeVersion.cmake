# Generates trireme/base/version.hpp in the build tree: what this build is and what it was built from.
#
# It is written at build time, because the commit changes without CMake running again, and only when its content
# changes, so that an ordinary build recompiles nothing. Used twice: included (defines the target) and run with -P.

if(CMAKE_SCRIPT_MODE_FILE)
  # Only a checkout of our own counts: an unpacked archive inside another repository must not report that one's commit.
  set(TRIREME_COMMIT "unknown")
  if(EXISTS "${SOURCE_DIR}/.git")
    execute_process(COMMAND git -C "${SOURCE_DIR}" describe --always --dirty --abbrev=12 --exclude=*
                    OUTPUT_VARIABLE described OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
    if(NOT failed)
      set(TRIREME_COMMIT "${described}")
    endif()
  endif()
  configure_file("${TEMPLATE}" "${OUTPUT}" @ONLY)
  return()
endif()

include_guard(GLOBAL)

set(TRIREME_BUILT_BY "${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}")
set(version_arguments "")
foreach(name MPI HDF5 KOKKOS LIBTORCH NCCL)
  get_property(value GLOBAL PROPERTY TRIREME_VERSION_OF_${name})
  if(NOT value)
    set(value "none")
  endif()
  list(APPEND version_arguments "-DTRIREME_VERSION_OF_${name}=${value}")
endforeach()

add_custom_target(trireme_version
  COMMAND ${CMAKE_COMMAND} -DSOURCE_DIR=${PROJECT_SOURCE_DIR}
          -DTEMPLATE=${PROJECT_SOURCE_DIR}/cmake/version.hpp.in
          -DOUTPUT=${PROJECT_BINARY_DIR}/generated/include/trireme/base/version.hpp
          -DTRIREME_VERSION=${PROJECT_VERSION} -DTRIREME_VERSION_MAJOR=${PROJECT_VERSION_MAJOR}
          -DTRIREME_VERSION_MINOR=${PROJECT_VERSION_MINOR} -DTRIREME_VERSION_PATCH=${PROJECT_VERSION_PATCH}
          "-DTRIREME_BUILT_BY=${TRIREME_BUILT_BY}" "-DTRIREME_BUILD_TYPE=$<CONFIG>" "-DTRIREME_ARCH=${TRIREME_ARCH}"
          ${version_arguments}
          -P ${PROJECT_SOURCE_DIR}/cmake/TriremeVersion.cmake
  BYPRODUCTS ${PROJECT_BINARY_DIR}/generated/include/trireme/base/version.hpp
  COMMENT "" VERBATIM)
