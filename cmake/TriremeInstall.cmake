# install and find_package(trireme): headers, room libraries, the command and what the package needs to find its own
# dependencies again. tests/installed_consumer builds a small project against the result.

include_guard(GLOBAL)
include(CMakePackageConfigHelpers)

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
  install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/" DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
  install(DIRECTORY "${PROJECT_BINARY_DIR}/generated/include/" DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})

  configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/trireme-config.cmake.in"
    "${PROJECT_BINARY_DIR}/generated/trireme-config.cmake" INSTALL_DESTINATION ${package})
  write_basic_package_version_file("${PROJECT_BINARY_DIR}/generated/trireme-config-version.cmake"
    COMPATIBILITY SameMinorVersion)
  install(FILES "${PROJECT_BINARY_DIR}/generated/trireme-config.cmake"
                "${PROJECT_BINARY_DIR}/generated/trireme-config-version.cmake"
                "${PROJECT_SOURCE_DIR}/cmake/TriremeDependencies.cmake"
                "${PROJECT_SOURCE_DIR}/cmake/TriremeTorch.cmake"
          DESTINATION ${package})
endfunction()
