# install and find_package(trireme): headers, room libraries, the command and what the package needs to find its own
# dependencies again. tests/installed_consumer builds a small project against the result.

include_guard(GLOBAL)
include(CMakePackageConfigHelpers)

# The command starts without LD_LIBRARY_PATH, from the build folder and installed. CMake keeps the paths of the libraries
# that it links, save those below the checkout, where .deps is. One path for both, because CMake ends the path of a build
# that is to be rewritten with an empty entry, which the loader reads as the working folder.
set(CMAKE_INSTALL_RPATH_USE_LINK_PATH ON)
set(CMAKE_INSTALL_RPATH "${TRIREME_LIBTORCH_FOUND}/lib")
set(CMAKE_BUILD_WITH_INSTALL_RPATH ON)

function(trireme_install)
  set(package "${CMAKE_INSTALL_LIBDIR}/cmake/trireme")
  set(targets trireme_all)
  get_property(rooms GLOBAL PROPERTY TRIREME_BUILT_ROOMS)
  foreach(room IN LISTS rooms)
    if(NOT room STREQUAL "app")
      list(APPEND targets trireme_${room})
    endif()
  endforeach()
  install(TARGETS ${targets} EXPORT trireme ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
  install(EXPORT trireme NAMESPACE trireme:: FILE trireme-targets.cmake DESTINATION ${package})
  # Job scripts by hand: TRIREME_HOME is this folder.
  install(DIRECTORY "${PROJECT_SOURCE_DIR}/slurm" "${PROJECT_SOURCE_DIR}/pbs"
          DESTINATION ${CMAKE_INSTALL_DATADIR}/trireme USE_SOURCE_PERMISSIONS)
  install(DIRECTORY "${PROJECT_SOURCE_DIR}/share/sites" "${PROJECT_SOURCE_DIR}/share/job"
          DESTINATION ${CMAKE_INSTALL_DATADIR}/trireme/share)
  install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/" DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
  install(DIRECTORY "${PROJECT_BINARY_DIR}/generated/include/" DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})

  set(TRIREME_HAS_IO_URING OFF)
  if(TARGET trireme_dep::uring)
    set(TRIREME_HAS_IO_URING ON)
  endif()
  set(TRIREME_HAS_DEVICE OFF)
  if(TARGET trireme_dep::nccl)
    set(TRIREME_HAS_DEVICE ON)
  endif()
  configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/trireme-config.cmake.in"
    "${PROJECT_BINARY_DIR}/generated/trireme-config.cmake" INSTALL_DESTINATION ${package})
  write_basic_package_version_file("${PROJECT_BINARY_DIR}/generated/trireme-config-version.cmake"
    COMPATIBILITY SameMinorVersion)
  install(FILES "${PROJECT_BINARY_DIR}/generated/trireme-config.cmake"
                "${PROJECT_BINARY_DIR}/generated/trireme-config-version.cmake"
                "${PROJECT_SOURCE_DIR}/cmake/TriremeDependencies.cmake"
                "${PROJECT_SOURCE_DIR}/cmake/TriremeTorch.cmake"
                "${PROJECT_SOURCE_DIR}/cmake/TriremePlugin.cmake"
          DESTINATION ${package})
endfunction()
